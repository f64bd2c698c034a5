"""Django's cache back ends: of Redis (django-redis), pymemcache and pylibmc."""
import sys
import threading
import time
import django
from django.conf import settings

BACKENDS = {
    "redis": ("django_redis.cache.RedisCache", "redis://{}/1"),
    "pymemcache": ("django.core.cache.backends.memcached.PyMemcacheCache", "{}"),
    "pylibmc": ("django.core.cache.backends.memcached.PyLibMCCache", "{}"),
}
kind = sys.argv[2]
backend, location = BACKENDS[kind]
base = {"BACKEND": backend, "LOCATION": location.format(sys.argv[1])}
options = [{}, {"VERSION": 2}, {"KEY_PREFIX": "prefix"}, {"TIMEOUT": 1}]
names = ["default", "v2", "prefix", "short"]
settings.configure(
    CACHES={name: {**base, **more} for name, more in zip(names, options)},
    SESSION_ENGINE="django.contrib.sessions.backends.cache",
    INSTALLED_APPS=["django.contrib.sessions"],
)
django.setup()
from django.contrib.sessions.backends.cache import SessionStore
from django.core.cache import cache, caches

cache.clear()


def tried(call, *words, **named):
    try:
        return call(*words, **named)
    except Exception as error:
        return type(error).__name__


print(cache.add("a", 1), cache.add("a", 2), cache.get("a"))
print(cache.get("none"), cache.get("none", 3))
print(cache.set("null", None), cache.get("null", "default"), "a" in cache, "b" in cache)
print(tried(cache.set, "a", lambda: None), cache.get("a"))
values = {"s": "word", "ünïcode": "Iñtërnâtiônàlizætiøn",
          "l": [1, 2], "f": 1.5, "b": b"\0\xff",
          "true": True, "empty": "", "long": "x" * 100_000, "space of": {"x": {"y": 2}}}
for key, value in values.items():
    if " " in key and kind != "redis":
        print(tried(cache.set, key, value))
        continue
    cache.set(key, value)
    print(key, cache.get(key) == value, type(cache.get(key)).__name__)
print(cache.set("n", 40), cache.incr("n"), cache.incr("n", 10), cache.decr("n", 2), cache.get("n"))
print(tried(cache.incr, "none"), tried(cache.decr, "none"), cache.incr("n", 1 << 30))
print(tried(cache.incr, "n", -1), cache.delete("n"), cache.delete("n"), cache.get("n"))
print(cache.set_many({"m1": 1, "m2": [2], "m3": "3"}))
print(sorted(cache.get_many(["m1", "m2", "m3", "m4"]).items()), cache.get_many([]))
print(cache.delete_many(["m1", "m2"]), cache.get_many(["m1", "m2", "m3"]), cache.set_many({}))
print(cache.get_or_set("made", lambda: "by call"), cache.get_or_set("made", "other"))
print(cache.touch("made", 100), cache.touch("none", 100), cache.touch("made"), cache.get("made"))
cache.set("gone", 1, timeout=0)
cache.set("before", 1, timeout=-1)
cache.set("forever", 1, timeout=None)
cache.set("month", 1, timeout=60 * 60 * 24 * 30 + 1)
print(cache.get_many(["gone", "before", "forever", "month"]) if kind == "redis"
      else [cache.get(key) for key in ("forever",)])
caches["short"].set("short", 1)
cache.set("touched", 1, timeout=1)
print(cache.touch("touched", 100))

print(caches["v2"].get("a"), caches["v2"].set("a", "two"))
print(cache.get("a", version=2), cache.get("a"))
print(cache.incr_version("a", 9), cache.get("a"), cache.get("a", version=10))
print(cache.decr_version("a", 5, version=10), cache.get("a", version=5))
print(tried(cache.incr_version, "none"), caches["prefix"].get("forever"))
print(caches["prefix"].set("p", "with"), cache.get("p"), caches["prefix"].get("p"))

session = SessionStore()
session["user"] = {"id": 7}
session.create()
again = SessionStore(session.session_key)
print(again["user"], again.exists(session.session_key), again.get_expiry_age())
again.cycle_key()
print(SessionStore(again.session_key)["user"], SessionStore().exists(session.session_key))
again.flush()

cache.set("counted", 0)
counting = [threading.Thread(target=lambda: [cache.incr("counted") for _ in range(50)])
            for _ in range(4)]
for thread in counting:
    thread.start()
for thread in counting:
    thread.join()
print(cache.get("counted"))

if kind == "redis":
    cache.set("timed", 1, timeout=50)
    print(40 < cache.ttl("timed") <= 50, cache.ttl("none"), cache.ttl("forever"))
    print(cache.persist("timed"), cache.ttl("timed"))
    print(cache.expire("timed", 20), 0 < cache.pttl("timed") <= 20_000, cache.has_key("timed"))
    print(sorted(cache.keys("m*")), sorted(cache.iter_keys("t*")), cache.delete_pattern("m*"))
    print(cache.set("once", 1, nx=True), cache.set("once", 2, nx=True), cache.get("once"))
    with cache.lock("lock", timeout=10):
        print(cache.lock("lock", timeout=10).acquire(blocking=False), "lock" in cache)
    print("lock" in cache)
while "short" in caches["short"]:
    time.sleep(0.02)
print(cache.get("touched"), cache.clear(), cache.get("forever"), cache.get("a", version=5))
cache.close()
