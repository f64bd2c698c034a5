"""redis-py: pipelines, transactions, its lock, scripts, hashes, databases, asyncio."""
import asyncio
import sys
import redis
import redis.asyncio

host, port = sys.argv[1].rsplit(":", 1)
r = redis.Redis(host, int(port))
r.flushall()


def tried(call, *words, **named):
    try:
        return call(*words, **named)
    except redis.RedisError as error:
        return type(error).__name__, str(error)


p = r.pipeline()
print(p.set("a", 1).incr("a").get("a").hset("h", "f", "v").expire("a", 100).execute())
print(p.set("a", "word").incr("a").get("a").execute(raise_on_error=False))
print(tried(p.get("a").execute_command("SET", "a").execute))


def raised(pipe):
    value = int(pipe.get("n") or 0)
    if value == 0:
        r.set("n", 5)  # from another connection: the transaction begins anew
    pipe.multi()
    pipe.set("n", value + 10)


print(r.transaction(raised, "n"), r.get("n"))
with r.pipeline() as p:
    p.watch("n")
    r.incr("n")
    p.multi()
    print(tried(p.set("n", 0).execute), r.get("n"))

lock = r.lock("lock", timeout=10)
other = r.lock("lock", timeout=10)
print(lock.acquire(), other.acquire(blocking=False), lock.locked(), lock.owned(), other.owned())
print(lock.extend(5), 0 < r.pttl("lock") <= 15000, lock.reacquire(), tried(other.extend, 5))
print(lock.release(), r.exists("lock"), tried(lock.release))
short = r.lock("lock", timeout=0.02)
print(short.acquire(), other.acquire(blocking_timeout=5), tried(short.release), other.owned())
with r.lock("lock of a block", timeout=10, blocking_timeout=1) as held:
    print(held.owned(), r.exists("lock of a block"))
print(r.exists("lock of a block"), other.release())

script = r.register_script("return {KEYS[1], ARGV[1], redis.call('INCRBY', KEYS[1], ARGV[1])}")
print(script(keys=["counted"], args=[7]), r.script_exists(script.sha, "0" * 40))
p = r.pipeline()
print(script(keys=["counted"], args=[1], client=p) is p, p.get("counted").execute())
print(tried(r.eval, "return redis.call('INCR', KEYS[1])", 1, "lock"), r.script_flush())
print(tried(r.evalsha, script.sha, 1, "counted", 1), script(keys=["counted"], args=[1]))

print(r.hset("hash", mapping={"a": 1, "b": 2.5}), r.hgetall("hash"), r.hincrby("hash", "a", 4))
print(r.hmget("hash", "a", "none"), r.hincrbyfloat("hash", "b", 0.25), r.hdel("hash", "a", "none"))
print(sorted(r.hscan_iter("hash")), r.type("hash"), tried(r.get, "hash"), tried(r.hget, "n", "f"))

r.mset({f"many:{index}": index for index in range(300)})
print(sorted(r.scan_iter("many:2?", count=50)), len(set(r.scan_iter(_type="string"))))
print(len(r.keys("many:*")), r.delete(*r.keys("many:*")), r.unlink("none"))
print(r.setbit("bits", 7, 1), r.bitcount("bits"), r.bitpos("bits", 1), r.getrange("bits", 0, 0))
print(r.bitfield("bits").incrby("u8", 0, 300).get("u4", 0).execute(), r.setrange("range", 3, "x"))
print(r.pfadd("hll", "a", "b", "a"), r.pfcount("hll"))
print(r.incrbyfloat("float", 0.1), r.copy("n", "m"))
print(r.rename("m", "o"), tried(r.rename, "m", "o"))
print(r.getex("o", ex=50), 40 < r.ttl("o") <= 50, r.getdel("o"))
print(r.set("kept", "new", get=True), r.set("kept", "newer", xx=True, keepttl=True, get=True))
print(r.restore("copy", 0, r.dump("kept")), r.get("copy"), r.object("encoding", "n"))
print(r.msetnx({"x": 1, "kept": 2}), r.exists("x"), r.expiretime("kept"), r.persist("kept"))

one = redis.Redis(host, int(port), db=1, decode_responses=True)
print(one.get("n"), one.set("n", "of one"), one.get("n"), r.get("n"), one.dbsize(), r.move("n", 1))
print(r.swapdb(0, 1), one.exists("kept"), r.keys(), one.flushdb(), r.dbsize())
print(r.client_setname("named"), r.client_getname(), r.wait(0, 1), r.ping(), r.echo("said"))
print(tried(r.execute_command, "NONSENSE", "word"), tried(r.execute_command, "GET"))
single = redis.Redis(host, int(port), single_connection_client=True)
print(r.client_kill_filter(_id=single.client_id()), tried(single.ping)[0], single.ping())


async def asked():
    async with redis.asyncio.Redis(host=host, port=int(port)) as client:
        async with client.pipeline(transaction=True) as pipe:
            print(await pipe.set("async", 1).incr("async").execute())
        async with client.lock("async lock", timeout=10):
            print(await client.exists("async lock"))
        found = await asyncio.gather(*(client.incr("gathered") for _ in range(50)))
        print(sorted(found) == list(range(1, 51)))


asyncio.run(asked())
