//! Every limit and default of the protocol, each with its reason or source. Queues, tables,
//! retries and waits take their bounds from here and from nowhere else.

/// Smallest page: 4 KiB, the processor's own.
pub const PAGE_SHIFT_MIN: u8 = 12;
/// Largest page: 1 GiB.
pub const PAGE_SHIFT_MAX: u8 = 30;
/// Default page: 2 MiB. Source: Rcmp §6.1.
pub const PAGE_SHIFT_DEFAULT: u8 = 21;

/// Between the memories of a rack a page moves if it was used lately once for so many of its bytes:
/// to read and write some eight lines in a stream takes what one access to far memory takes longer.
pub const TIER_MOVE_BYTES: u64 = 512;
/// Bytes of such a page that are copied in one step of the daemon: some 0.2 ms.
pub const TIER_COPY_BYTES: u64 = 1 << 20;
/// How often a daemon looks for such a page, ns.
pub const TIER_LOOK_NS: u64 = 16 * NS_PER_MS;
/// The least time between two of them for each byte of a page, ns: 125 MB/s at most.
pub const TIER_NS_PER_BYTE: u64 = 8;
/// Memories of one rack: DRAM, CXL memory at the processor, behind a switch, and one more.
pub const TIERS_MAX: usize = 4;

/// Smallest slab object: one cache line. Source: Rcmp §5.1 (powers of two).
pub const SLAB_SHIFT_MIN: u8 = 6;

/// Client slots of one rack daemon: one for each handle (thread) of this host.
/// Rcmp's published code stops at 32 a rack for a daemon's whole life.
pub const SLOTS_MAX: u32 = 256;
/// Slots of one user at most, if it is not the daemon's own or root.
pub const SLOTS_OF_USER_MAX: u32 = SLOTS_MAX / 2;
/// Sessions of remote clients for which a daemon keeps the last answer, for exactly-once.
pub const REMOTE_SESSIONS_MAX: u32 = 768;
/// Session records of a daemon: the local slots first, then the remote ones.
pub const SESSIONS_MAX: u32 = SLOTS_MAX + REMOTE_SESSIONS_MAX;

/// Locks that the clients of one rack's memory hold at once.
pub const LOCKS_MAX: u32 = 2048;
/// Locks that one handle holds at once in one rack: the names fit into one message, and others
/// find room.
pub const LOCKS_OF_SESSION_MAX: usize = 64;
/// Locks that a slot's guards give back between two looks of the daemon without a message: one
/// cache line.
pub const LOCK_RELEASES: u32 = 8;
/// A lock's name is a multiple of this: one cache line. Source: Rcmp §5.4 (locks on addresses).
pub const LOCK_ALIGN_BYTES: u64 = 64;

/// Objects of a slab page that are lent to a handle together, at most: each has a bit in the low
/// half of a word of its slot.
pub const LOAN_OBJECTS_MAX: u32 = 32;
/// Bytes of such a group at most.
pub const LOAN_BYTES_MAX: u64 = 16 << 10;
/// log2 of the largest objects that are lent: four make a group.
pub const LOAN_SHIFT_MAX: u8 = 12;
/// Groups that a handle has at once in a rack: the objects of a million bytes and more, so that a
/// steady mix of allocations and frees stays among them.
pub const LOANS_MAX: u32 = 1024;
/// Objects that one answer lends at most, about: a message for each hundred of the smallest.
pub const LEND_OBJECTS_MAX: u32 = 128;
/// Bytes that one answer lends at most, about.
pub const LEND_BYTES_MAX: u64 = 64 << 10;
/// Groups that one answer lends at most, of pages that are nearly full: they fit into
/// [`MESSAGE_BYTES_MAX`].
pub const LEND_GROUPS_MAX: usize = 32;
/// Groups that one request gives back at most.
pub const LOANS_RETURNED_MAX: usize = 256;
/// Free objects that a handle keeps in a rack, bytes; of more it gives half back.
pub const MAGAZINE_BYTES_MAX: u64 = 256 << 10;
/// Objects of a size that a handle asks for one by one, and of others' that it frees one by one,
/// before it begins with batches: most handles allocate little.
pub const MAGAZINE_BEGIN: u32 = 8;
/// Frees of others' objects that wait in a slot until the daemon is told.
pub const FREE_QUEUE: u32 = 64;
/// How long a handle leaves its loans alone before the daemon takes them back, ns.
pub const LOAN_IDLE_NS: u64 = NS_PER_SECOND;

/// The two halves of a handle's write buffer together by default, bytes: half a MiB holds what a
/// lock's holder writes in a few hundred round trips. Rcmp §6.1 has two of 64 MB, for all threads.
pub const WRITE_BUFFER_BYTES_DEFAULT: u32 = 1 << 20;
/// The longest write that the write buffer takes by default. Source: Rcmp §5.4.
pub const BUFFERED_WRITE_BYTES_MAX_DEFAULT: u32 = 256;
/// Longest piece into which buffered writes are merged, bytes. Targets apply WRITEs of this length
/// whole or, if their connection ends before, not at all.
pub const BUFFERED_PIECE_BYTES_MAX: u64 = 4 << 10;
/// Blocks of a handle's page cache by default. Source: Rcmp §6.1 (its blocks are whole pages).
pub const CACHED_BLOCKS_DEFAULT: u32 = 50;
/// A block of the page cache: what costs little more to fetch than one line, bytes.
pub const CACHED_BLOCK_BYTES: u64 = 16 << 10;
/// How long after a proof that a lock is held its cached blocks are read without a new one, ns: the
/// lock outlives its connection by a lease, half of which is left for clocks that drift.
pub const CACHED_PROOF_NS: u64 = LEASE_MS_DEFAULT * NS_PER_MS / 2;

/// Cells in which a handle announces the frames that it is about to touch: one for the access
/// under way and seven for pinned pages. One cache line.
pub const CELLS: u32 = 8;

/// Frames that a rack's RDMA device has open at once, for all its users; a user that needs one more
/// closes the one that is open for longest, which costs its users a registration.
pub const VERBS_FRAMES_OPEN_MAX: u32 = 1024;

/// Entries of a poll ring, one cache line each. A handle has at most this many requests under way.
pub const RING_ENTRIES: u32 = 64;
/// Bytes of a poll entry.
pub const RING_ENTRY_BYTES: u32 = 64;
/// Bytes of a data ring: the longest message is a quarter, so that four are under way.
pub const RING_DATA_BYTES: u32 = 64 << 10;
/// The longest message between a client and a daemon, in a ring or by SEND.
pub const MESSAGE_BYTES_MAX: u32 = RING_DATA_BYTES / 4;

/// The longest piece of data that goes through the own rack's daemon at once, bytes: with its
/// order it fits into [`MESSAGE_BYTES_MAX`], and several are under way in one ring.
pub const PROXY_PIECE_BYTES_MAX: u64 = 8 << 10;
/// How long a daemon that works for its clients may be silent before its connection counts as over:
/// it speaks four times a lease.
pub const UPLINK_SILENCE_NS: u64 = 4 * LEASE_MS_DEFAULT * NS_PER_MS;
/// Channels of one client through its daemon: one to each rack, and as many that end.
pub const PROXY_CHANNELS_MAX: usize = 2 * RACKS_MAX as usize;

/// Pages that one Resolve may name: their homes fit into [`MESSAGE_BYTES_MAX`].
pub const RESOLVE_PAGES_MAX: u32 = 256;
/// Sessions that one answer names: they fit into [`MESSAGE_BYTES_MAX`].
pub const SESSIONS_ANSWER_MAX: usize = 256;
/// Pages of one allocation (1 TiB of 2 MiB pages is 2^19; larger data sets take several runs).
pub const RUN_PAGES_MAX: u32 = 1 << 16;
/// Page homes that one message to the master carries.
pub const COMMIT_PAGES_MAX: u32 = 4096;
/// The longest frame on a control connection to the master, bytes.
pub const MASTER_MESSAGE_BYTES_MAX: u32 = 1 << 20;
/// File descriptors that one message on a control connection carries: slot, bell, table, pages
/// and wake event today, with room for three more.
pub const CONTROL_FDS_MAX: usize = 8;
/// Clients that wait for a daemon to accept them: all its slots at once, and half as many for
/// those that try again.
pub const CONTROL_BACKLOG: i32 = (SLOTS_MAX + SLOTS_MAX / 2) as i32;
/// Connections taken from a control socket in one turn of a poll loop.
pub const CONTROL_ACCEPTS_MAX: usize = 64;
/// Connections of a control socket that have not said hello; of more, the oldest of the user that
/// has most goes.
pub const CONTROL_PENDING_MAX: usize = 64;
/// Pause after a control connection could not be accepted, ns.
pub const CONTROL_REST_NS: u64 = 100_000_000;
/// Page ids that a daemon leases from the master at once.
pub const PAGE_ID_LEASE: u64 = 1 << 20;

/// Racks of one pool: what one answer to `Racks` can name in full.
pub const RACKS_MAX: u16 = 1024;
/// Shards of one rack: what three bits of its id can tell. Each shard counts as a rack of
/// [`RACKS_MAX`] at the master.
pub const RACK_SHARDS_MAX: u16 = 8;
/// Longest name of a root (a named address at the master), bytes.
pub const ROOT_NAME_BYTES_MAX: usize = 255;
pub const ROOTS_MAX: usize = 4096;
/// Longest host, control and fabric name of a rack, bytes: all racks fit into one answer.
pub const RACK_NAME_BYTES_MAX: usize = 255;

/// Connections that a master serves: a daemon and a few thousand client handles. Beyond: `Busy`.
pub const MASTER_CONNECTIONS_MAX: usize = 4096;
/// Connections of a server with a secret that have not proved it yet: enough for the threads of a
/// rack that begin at once, little memory for strangers. The oldest gives way.
pub const UNPROVEN_CONNECTIONS_MAX: usize = 128;
/// Commands that one transaction of the master carries; beyond: `Busy`.
pub const MASTER_BATCH_COMMANDS_MAX: usize = 8192;
/// Pages named by the commands of one transaction; further requests wait for the next one.
pub const MASTER_BATCH_PAGES_MAX: usize = 1 << 16;
/// Requests of one connection that the master takes before it looks at the others.
pub const MASTER_TURN_REQUESTS_MAX: usize = 64;
/// Unread answers of one connection, bytes, from which on none of its requests is taken.
pub const MASTER_OUTPUT_BYTES_HIGH: usize = 256 << 10;
/// How long a connection may leave its answers unread, or not say hello, ms.
pub const MASTER_STALL_MS_MAX: u64 = 10_000;
/// Bytes that all connections of a master together keep in its buffers; of more, the connection
/// goes that has most.
pub const MASTER_BUFFERS_BYTES_MAX: usize = 64 << 20;
/// How long a connection of a master that is no daemon's has to have been silent before it gives
/// way to a new one where there are too many, ms.
pub const MASTER_IDLE_MS_MIN: u64 = 1_000;
/// Bytes on the master's disk that are kept for the batch during which the disk becomes full.
pub const MASTER_RESERVE_BYTES: u64 = 1 << 20;
/// Pause between two looks whether there is room on the master's disk again, ms.
pub const MASTER_ROOM_MS: u64 = 1_000;
/// Calls that one link to the master has under way.
pub const MASTER_CALLS_MAX: usize = 256;
/// Bytes of calls that wait in a link for the socket: two of the longest messages.
pub const MASTER_CALL_BYTES_MAX: usize = 2 * MASTER_MESSAGE_BYTES_MAX as usize;
/// How long a link waits for a connection and its welcome before it tries the next address, ms.
pub const MASTER_CONNECT_MS_MAX: u64 = 1000;
/// First pause between two attempts of a link to connect, ms; it doubles.
pub const MASTER_BACKOFF_MS_MIN: u64 = 1;
/// Longest pause between two attempts of a link to connect, ms.
pub const MASTER_BACKOFF_MS_MAX: u64 = 128;
/// The first pause between two attempts of a client to reach a rack, ms; the next are doubled.
pub const RACK_BACKOFF_MS_MIN: u64 = 1;
/// The longest of these pauses, ms.
pub const RACK_BACKOFF_MS_MAX: u64 = 50;

/// Longest head of a request for metrics, bytes: what a browser sends is a tenth of it.
pub const METRICS_HEAD_BYTES_MAX: usize = 8 << 10;
/// Fields of such a head.
pub const METRICS_HEAD_FIELDS_MAX: usize = 64;
/// Connections that are served at once; then the oldest one gives its place to a new one.
pub const METRICS_CONNECTIONS_MAX: usize = 64;
/// How long a server's poll loop is waited for, ms: it works on nothing for as long.
pub const METRICS_SNAPSHOT_MS_MAX: u64 = 500;
/// How long one request for metrics may take from its connection to its last byte, ms.
pub const METRICS_CONNECTION_MS_MAX: u64 = 2_000;

/// Duration of a lease. DESIGN §3: counted by the holder from its request and by the grantor
/// from its reply.
pub const LEASE_MS_DEFAULT: u64 = 1000;
/// How long a call waits for a peer that restarts before it answers with a typed error.
pub const REQUEST_TIMEOUT_MS_DEFAULT: u64 = 10_000;

/// How long a daemon keeps the session of a remote client that has lost its connection: three times
/// as long as a client tries to come back by default.
pub const SESSION_GRACE_MS_DEFAULT: u64 = 3 * REQUEST_TIMEOUT_MS_DEFAULT;

/// How long a daemon goes on after its rack has left, for clients of its host that are still there:
/// they find their pages in other racks, and programs have time to end.
pub const LEFT_GRACE_MS_DEFAULT: u64 = 5_000;

/// Entries of a handle's translation cache by default: 16 GiB of 2 MiB pages, 256 KiB of memory.
pub const TRANSLATION_ENTRIES_DEFAULT: u32 = 8192;
/// How often an access is tried again because its page moved while it ran.
pub const STALE_RETRIES_MAX: u32 = 16;

/// How often a system call on a region's files is tried again because a signal or another
/// process came in between.
pub const REGION_RETRIES_MAX: u32 = 16;

/// Frames that wait for a stopped reader or writer before they can be used again; more is `Busy`.
pub const QUARANTINE_FRAMES_MAX: u32 = 4096;

/// Words of the bitmap that goes with a slab page: they fit into [`MESSAGE_BYTES_MAX`], and hold
/// the smallest objects of a page of the default size twice over.
pub const MOVE_BITMAP_WORDS_MAX: usize = 1024;
/// Bytes of a moving page that are copied at once: a page of the default size goes in one piece,
/// and the buffer of a mover stays small whatever the size of pages.
pub const MOVE_CHUNK_BYTES: u64 = 4 << 20;
/// Moves that one daemon takes part in at once, as old and as new home each.
pub const MOVES_MAX: usize = 64;
/// Moves of the pool that the master knows to be under way; beyond: `Busy`.
pub const MASTER_MOVES_MAX: usize = 4096;
/// Requests that wait at a daemon until shut pages are open again: two a session.
pub const MOVE_WAITERS_MAX: usize = 2 * SESSIONS_MAX as usize;
/// How long a page's users are waited for before the page stays, ns.
pub const MOVE_DRAIN_NS: u64 = 20_000_000;
/// How long a page is shut for its mover before it is taken back, ns: half a lease, so that no
/// client waits for a dead mover longer than for a dead daemon.
pub const MOVE_SHUT_NS: u64 = LEASE_MS_DEFAULT * NS_PER_MS / 2;
/// Calls of a daemon that the master has not answered yet: enough chunks of
/// [`COMMIT_PAGES_MAX`] to hide the round trip of a long run.
pub const DAEMON_CALLS_MAX: usize = 8;
/// Pause before a call is sent again that the master could not serve.
pub const MASTER_RETRY_NS: u64 = 50_000_000;
/// How often an allocation's call is sent again after a refusal before the allocation fails
/// (removals are never given up): longer than a request's timeout.
pub const MASTER_ATTEMPTS_MAX: u32 = 256;
/// Frees that a rack owes for words that were freed there: what they named was in other racks, and
/// the master does not know of it yet. One call pays all of them; more is `Busy`.
pub const DEBTS_MAX: usize = 64;
/// Allocations that a rack is freeing for words of other racks, in one round trip to the master.
pub const DUES_MAX: usize = 32;
/// Allocations of the pool that the master has to have freed; more stay with their debtors.
pub const ORPHANS_MAX: usize = 4096;
/// Pages of freed runs that one answer of the master names.
pub const ORPHAN_PAGES_ANSWER_MAX: usize = 1024;
/// Frees in other racks that a daemon waits for at once; further ones wait in order.
pub const AWAITS_MAX: usize = 64;
/// The same, of all daemons at the master; more is `Busy`.
pub const MASTER_AWAITS_MAX: usize = 4096;
/// After how long a daemon asks again for what it is to free and could not, ns.
pub const ORPHANS_RETRY_NS: u64 = 5_000_000;
/// Generations that a daemon marks as given out at once, so that most allocations store none.
pub const GENERATION_CHUNK: u64 = 1024;
/// Page memory that one call of a daemon backs or punches at most, bytes: a few milliseconds.
pub const BACKING_STEP_BYTES: u64 = 32 << 20;
/// Frames that one call of a daemon backs or punches at most: each may be a system call.
pub const BACKING_STEP_FRAMES_MAX: u64 = 1024;

/// Work requests that one fabric connection has outstanding.
pub const FABRIC_OUTSTANDING_MAX: u32 = 128;
/// Scatter/gather entries of one work request.
pub const FABRIC_SGES_MAX: usize = 4;
/// Longest one-sided operation, bytes: one page of the largest size.
pub const FABRIC_OP_BYTES_MAX: u64 = 1 << PAGE_SHIFT_MAX;
/// Connections of one fabric endpoint, and most connections that one target serves: a key-value
/// cache has thousands of clients. A target of a region serves one for each session.
pub const FABRIC_PEERS_MAX: u32 = 16 << 10;
/// Messages (SEND and WRITE_IMM) that wait for the target's application; then their connections
/// are read no further until it takes some.
pub const FABRIC_EVENTS_MAX: usize = 1024;
/// Messages of the target's application that wait for one connection; more is `Busy`.
pub const FABRIC_MESSAGES_MAX: usize = 64;
/// Local buffers that one endpoint has registered, of each kind (owned, scoped).
pub const FABRIC_BUFFERS_MAX: usize = 1024;

pub const NS_PER_SECOND: u64 = 1_000_000_000;
pub const NS_PER_MS: u64 = 1_000_000;
/// Window of the recent access counters, milliseconds: long enough to count a page that pays for
/// its move several times, short enough to follow a phase of work.
pub const HEAT_WINDOW_MS: u32 = 1000;
/// Pages that a full heat table looks at to give up the coldest of them: in a table that is half
/// hot, sixteen hot ones in a row are one in 65,536.
pub const HEAT_EVICT_SAMPLE: usize = 16;
/// Accesses after which a handle looks at the clock whether it should tell its daemon of them, at
/// least: so few can be unknown when it is decided where a page lives.
pub const USE_ACCESSES_MIN: u32 = 16;
/// The same at most: a look costs some 25 ns.
pub const USE_ACCESSES_MAX: u32 = 256;
/// How often a handle tells its daemon at most, ns: twenty times a window.
pub const USE_NS: u64 = 50_000_000;
/// After how long without an answer a handle asks its daemon the slow way, ns: it may be another
/// one by now.
pub const USE_SILENCE_NS: u64 = NS_PER_SECOND;
/// How long a handle waits for its daemon then, ms.
pub const USE_WAIT_MS: u64 = 10;
/// Pages that a handle tells of at once, the most used first: they fit into
/// [`MESSAGE_BYTES_MAX`].
pub const USE_PAGES_MAX: usize = 512;
/// Memory of a daemon's heat table, bytes: some 90,000 pages.
pub const HEAT_TABLE_BYTES: usize = 4 << 20;
/// Pages that a daemon wants to ask for and has not yet: the worker takes the hottest, and the
/// coldest makes room.
pub const MOVE_ASKS_MAX: usize = 1024;
/// Pages of which a daemon knows that they moved lately; of more it forgets the one that has moved
/// least.
pub const MOVE_HISTORIES_MAX: usize = 1 << 16;
/// Pages at home that a daemon looks at, after those of the last time, for the coldest of them.
pub const VICTIM_SAMPLE: usize = 128;
/// How long a page that could not be moved, or shall not, is left alone, ns: a window.
pub const MOVE_REST_NS: u64 = NS_PER_SECOND;
/// Pages that are left alone so; of more, the one with the earliest end of that time is not.
pub const MOVE_RESTING_MAX: usize = 4096;
/// After a question that moved nothing the worker pauses for as long as it took, after the next one
/// for twice as long, and so on up to so many times as long: where nothing is to be moved asking
/// takes little, and where much is, the pages that stay hold up few of the others.
pub const MOVER_PAUSE_TIMES_MAX: u32 = 256;
/// The longest such pause, ns.
pub const MOVER_PAUSE_NS_MAX: u64 = NS_PER_SECOND;
/// Decisions that a daemon remembers with all that they were made of.
pub const DECISIONS_MAX: usize = 1024;
/// Allocations, or pages of them, that one answer to an audit names, and words of bitmaps of up to
/// ten bytes each: together they fit into [`MESSAGE_BYTES_MAX`].
pub const AUDIT_PIECES_MAX: usize = 64;
/// See [`AUDIT_PIECES_MAX`].
pub const AUDIT_WORDS_MAX: usize = 1024;
/// Frames that the daemon goes through for one answer to an audit: some 100 µs.
pub const AUDIT_FRAMES_MAX: u32 = 4096;
/// Audits of a rack at once: a sweep of each of some racks, and a person's. The oldest of more
/// ends.
pub const AUDIT_WATCHES_MAX: usize = 8;
/// Names that one answer to an audit names: they fit into [`MASTER_MESSAGE_BYTES_MAX`].
pub const ROOTS_ANSWER_MAX: usize = 256;
/// Decisions that one answer names: they fit into [`MESSAGE_BYTES_MAX`].
pub const DECISIONS_ANSWER_MAX: usize = 16;

/// Bytes of what led to its choices of racks that a master keeps at once, in two such parts: some
/// ten thousand choices among four racks.
pub const PLACEMENT_LOG_BYTES: usize = 512 << 10;
/// Bytes of it in one answer: they fit into [`MASTER_MESSAGE_BYTES_MAX`].
pub const PLACEMENT_ANSWER_BYTES_MAX: usize = 256 << 10;

/// Decisions about the balance of the pool that a daemon remembers.
pub const BALANCES_MAX: usize = 256;
/// Such decisions that one answer names: they fit into [`MESSAGE_BYTES_MAX`].
pub const BALANCES_ANSWER_MAX: usize = 64;
/// Pages that stay of which a draining rack's daemon tells the reason: as many lines as a person
/// reads, and they fit into [`MESSAGE_BYTES_MAX`].
pub const DRAIN_REASONS_MAX: usize = 16;
/// Bytes of one such reason.
pub const DRAIN_REASON_BYTES_MAX: usize = 200;
/// Regions of a rack number that left or were given up and may not come back; of more the oldest
/// is forgotten.
pub const RETIRED_REGIONS_MAX: usize = 64;

/// How often a daemon looks at what waits for something that is not reported to it, ns.
pub const TICK_NS: u64 = NS_PER_MS;

/// Blocks of metadata of which a daemon compares the copies at once, at most: one for each tick
/// that has passed, which takes two microseconds, and all the frames of 1 TiB in seconds.
pub const SCRUB_BLOCKS_MAX: u64 = 16;
/// Damaged words that a daemon remembers; one that has more of them counts no further.
pub const DAMAGED_WORDS_MAX: usize = 1024;

/// How long a keeper's replicas are readable after one of its polls was answered, ns.
pub const REPLICA_LEASE_NS: u64 = LEASE_MS_DEFAULT * NS_PER_MS;
/// The part of it that readers use, by their clock: the rest is for clocks that drift.
pub const REPLICA_READ_NS: u64 = REPLICA_LEASE_NS / 8 * 7;
/// How long a home keeps a poll without an answer, ns.
pub const REPLICA_POLL_NS: u64 = REPLICA_LEASE_NS / 4;
/// What counts at most of the time between two looks of a home at its clock, ns: a hundred looks
/// are in a lease at least, so a clock that jumps cannot end one.
pub const REPLICA_STEP_NS: u64 = REPLICA_LEASE_NS / 100;
/// Homes that may have replicas of their pages in one rack: words behind the page table.
pub const REPLICA_HOMES: u64 = 64;
/// Entries of a directory of replicas, log2, at most.
pub const REPLICA_BITS_MAX: u32 = 12;
/// Pages that a keeper gives back before it asks its home again: its leases go on.
pub const REPLICA_RETURNS_MAX: u32 = 32;
/// Orders to one keeper that travel in one message, bytes: they fit into [`MESSAGE_BYTES_MAX`].
pub const REPLICA_ORDERS_BYTES_MAX: usize = 12 << 10;
/// Updates that wait for one keeper, bytes; of more the page is fetched again.
pub const REPLICA_BACKLOG_BYTES_MAX: usize = 64 << 10;
/// Pages of one home that have replicas.
pub const REPLICAS_MAX: usize = 1 << 14;
/// Requests that wait until replicas of their pages are closed: two a session.
pub const REPLICA_WAITERS_MAX: usize = 2 * SESSIONS_MAX as usize;
/// How long a keeper waits for the clients at a replica that is to be closed, ns: after that they
/// are dead, and it begins anew with other memory.
pub const REPLICA_STUCK_NS: u64 = 2 * REPLICA_LEASE_NS;
/// How often a writer tries to have all replicas of a page to itself, before it leaves the write to
/// the page's home.
pub const REPLICA_TRIES_MAX: u32 = 8;
/// Replicas of a page that a writer writes to itself; of more the home does it.
pub const REPLICA_PLACES_MAX: usize = 8;
/// Pages of which a handle knows where their replicas are.
pub const SHARERS_MAX: usize = 4096;
/// A replica that was not asked for so long is dropped, ns.
pub const REPLICA_IDLE_NS: u64 = 8 * NS_PER_SECOND;

/// Round trips of a moving page, one after another. Source: Rcmp §5.3: request, answer of the other
/// rack, shoot-down there, one-sided copies, new entry of the directory.
pub const MOVE_ROUND_TRIPS: u32 = 5;
/// One-sided accesses that a write to a page with a replica costs more than one without, if it does
/// not come from the replica's rack: to close the replica, and to write to it and open it.
pub const COPY_WRITE_ACCESSES: u32 = 2;
/// Doublings that recent moves of a page can add to what the next one must save.
pub const MOVE_DOUBLINGS_MAX: u32 = 10;

/// The unit in which sections are laid out and backed, bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// From this length on a copy to persistent memory goes around the caches; a shorter one is stored
/// and written back. Source: the Optane guide's crossover of latencies.
pub const STREAM_BYTES_MIN: usize = 512;
/// A record of a log in persistent memory is a multiple of this: what such a medium writes at once.
/// Source: the Optane guide, rule 1.
pub const RECORD_ALIGN_BYTES: u64 = 256;
/// Entries of a log are gathered in a record of up to so many bytes: what the write buffer of one
/// device holds. Source: the Optane guide, rule 1.
pub const COMBINER_BYTES: usize = 16 << 10;
/// A log's segment is a multiple of this, so that it uses all of six devices that are interleaved
/// by 4 KiB equally. Source: the Optane guide, figure 5.
pub const SEGMENT_STRIDE_BYTES: u64 = 24 << 10;
/// Strides of the longest segment, 6 MiB. All of a segment is written back before the next one is
/// begun: from 8 MB on what was only stored has left the caches in no order.
pub const SEGMENT_STRIDES_MAX: u32 = 256;
/// Segments of the largest log.
pub const SEGMENTS_MAX: u32 = 1 << 20;
