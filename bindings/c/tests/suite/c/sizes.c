/* Structures that are 8 bytes shorter and longer than the library's, as of other releases. */
#include "check.h"

_Static_assert(sizeof(rp_options) == 48 && sizeof(rp_cluster_options) == 32, "as the library's");
_Static_assert(sizeof(rp_piece) == 24 && sizeof(rp_const_piece) == 24, "as the library's");
_Static_assert(sizeof(rp_completion) == 16 && sizeof(rp_entry) == 40, "as the library's");
_Static_assert(sizeof(rp_explanation) == 296, "as the library's");

struct longer {
  rp_options options;
  uint64_t more;
};

int main(void) {
  char master[64];
  rp_cluster *cluster = start(master, sizeof master);
  rp_pool *pool = NULL;
  struct longer longer = {RP_OPTIONS_INIT, 0};
  longer.options.master = master;

  longer.options.size = sizeof longer;
  CHECK(rp_open(&longer.options, &pool));
  CHECK(rp_close(pool));
  longer.more = 1;
  EXPECT(RP_INVALID, rp_open(&longer.options, &pool));

  longer.options.size = sizeof(rp_options) - 8;
  longer.options.secret_file = "/nowhere/is/not/read";
  CHECK(rp_open(&longer.options, &pool));
  rp_handle *handle = handle_of(pool);

  longer.options.size = 0;
  EXPECT(RP_INVALID, rp_open(&longer.options, &pool));

  rp_addr addr = 0;
  struct {
    rp_explanation told;
    uint64_t more;
  } told;
  CHECK(rp_alloc(handle, 64, RP_RACK(1), &addr));
  memset(&told, 0x5a, sizeof told);
  told.told.size = sizeof told;
  CHECK(rp_explain(handle, addr, &told.told));
  HOLDS(told.told.rack == 1 && told.more == 0x5a5a5a5a5a5a5a5a);
  memset(&told, 0x5a, sizeof told);
  told.told.size = sizeof told.told - 8;
  CHECK(rp_explain(handle, addr, &told.told));
  HOLDS(told.told.rack == 1 && told.told.why[239] == 0x5a);
  CHECK(rp_free(handle, addr, 64));
  CHECK(rp_handle_close(handle));
  CHECK(rp_close(pool));
  CHECK(rp_cluster_stop(cluster));
  puts("all done");
  return 0;
}
