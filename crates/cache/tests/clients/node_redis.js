// node-redis: commands in one flight, transactions, scripts, hashes, scans, databases.
"use strict";
const { createClient, defineScript, commandOptions } = require("redis");

const tried = async (call) => {
  try {
    return await call();
  } catch (error) {
    return [error.constructor.name, error.message];
  }
};
const show = (...what) => console.log(what.map((one) => JSON.stringify(one)).join(" "));

const scripts = {
  take: defineScript({
    NUMBER_OF_KEYS: 1,
    SCRIPT: "local n = redis.call('INCRBY', KEYS[1], ARGV[1]) return {n, KEYS[1]}",
    transformArguments: (key, count) => [key, String(count)],
    transformReply: (reply) => reply,
  }),
};

async function run() {
  const client = createClient({ url: `redis://${process.argv[2]}`, scripts, name: "app" });
  client.on("error", (error) => console.log("error", error.message));
  await client.connect();
  await client.flushAll();
  show(await client.ping(), await client.clientGetName());
  show(await client.set("a", "1", { EX: 100 }));
  show(await client.set("a", "2", { NX: true, GET: true }));
  show(await client.get("a"), await client.get("none"), (await client.ttl("a")) > 90);
  const all = await Promise.all([...Array(500).keys()].map((n) => client.set(`k${n}`, `v${n}`)));
  show(all.every((said) => said === "OK"), await client.mGet(["k0", "k499", "none"]));
  show(await client.multi().set("m", "1").incr("m").hSet("h", { a: "1", b: "x" }).get("m").exec());
  show(await tried(() => client.multi().set("m", "x").incr("m").get("m").exec()));
  show(await client.get("m"));
  show(await tried(() => client.multi().addCommand(["NONSENSE"]).exec()));
  await client.executeIsolated(async (own) => {
    await own.watch("m");
    await client.set("m", "changed");
    show(await tried(() => own.multi().set("m", "lost").exec()), await own.get("m"));
    await own.watch("m");
    show(await own.multi().set("m", "won").get("m").exec());
  });
  show(await client.take("bucket", 3), await client.take("bucket", 4), await client.scriptFlush());
  show(await client.take("bucket", 1), await client.multi().take("bucket", 1).exec());
  show(await client.eval("return {KEYS[1], ARGV[1]}", { keys: ["k"], arguments: ["v"] }));
  show(await client.hGetAll("h"), await client.hIncrBy("h", "a", 5));
  show(await client.hmGet("h", ["a", "c"]));
  show(await client.hDel("h", "b"), await client.hLen("h"), await tried(() => client.get("h")));
  const found = [];
  for await (const key of client.scanIterator({ MATCH: "k1??", COUNT: 50 })) found.push(key);
  show(new Set(found).size, (await client.keys("k*")).length);
  show(await client.del(["k1", "k2", "none"]));
  show(await client.get(commandOptions({ returnBuffers: true }), "k3"));
  show(await client.incrByFloat("f", 0.5));
  show(await client.setRange("r", 2, "x"), await client.getRange("r", 2, 9));
  show(await client.setBit("bits", 3, 1), await client.bitCount("bits"));
  show(await client.rename("r", "s"));
  show(await client.getDel("s"), await client.exists("s"), await client.expire("a", 50, "GT"));
  await client.select(3);
  show(await client.get("a"), await client.set("a", "of three"), await client.dbSize());
  show(await client.flushDb(), await client.dbSize());
  await client.select(0);
  show(await client.get("a"), await tried(() => client.sendCommand(["GET"])), await client.quit());
}

run().catch((error) => {
  console.error(error);
  process.exit(1);
});
