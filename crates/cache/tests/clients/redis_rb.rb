# redis-rb: pipelines, transactions, scripts, hashes, scans, databases.
require "redis"

host, port = ARGV[0].split(":")
r = Redis.new(host: host, port: port.to_i)
r.flushall

def tried
  yield
rescue Redis::BaseError => error
  [error.class.name, error.message]
end

p r.ping, r.set("a", 1, ex: 100, nx: true), r.set("a", 2, nx: true), r.get("a"), r.ttl("a") > 90
p r.pipelined { |p| 200.times { |n| p.set("k#{n}", n) } }.uniq, r.mget("k1", "none", "k199")
p r.multi { |m| m.incr("n"); m.hset("h", "f", 1, "g", "x"); m.get("n") }
p tried { r.multi { |m| m.set("n", "x"); m.incr("n") } }, r.get("n")
p r.watch("n") { r.set("n", 1); r.multi { |m| m.set("n", 2) } }, r.get("n")
p r.watch("n") { r.multi { |m| m.set("n", 2) } }, r.get("n"), r.watch("n") { r.unwatch }
sha = r.script(:load, "return {KEYS[1], ARGV[1], redis.call('INCR', KEYS[1])}")
p r.evalsha(sha, ["n"], ["x"]), r.script(:exists, sha), tried { r.evalsha("0" * 40) }
p r.eval("return redis.error_reply('no')") rescue p $!.message
p r.hgetall("h"), r.hincrby("h", "f", 2), r.mapped_hmget("h", "f", "g"), r.hscan_each("h").sort
p r.scan_each(match: "k1??").to_a.uniq.size, r.keys("k*").size, r.del("k1", "none"), r.type("h")
p r.setbit("bits", 9, 1), r.bitcount("bits"), r.getrange("bits", 0, 5), r.incrbyfloat("f", 1.5)
p r.rename("f", "g"), r.getdel("g"), r.exists?("g"), r.expire("n", 20), r.persist("n"), r.dbsize
r.select(2)
p r.get("n"), r.set("n", "of two"), r.dbsize, r.flushdb, r.dbsize
r.select(0)
p r.get("n"), tried { r.call("NONSENSE") }, tried { r.call("GET") }, r.info.key?("redis_version")
r.close
