"""cachelib's caches in Redis and memcached, and Flask-Caching, which stands on them."""
import sys
from cachelib import MemcachedCache, RedisCache
from flask import Flask
from flask_caching import Cache

host, port = sys.argv[1].rsplit(":", 1)
kind = sys.argv[2]
if kind == "redis":
    c = RedisCache(host, int(port), key_prefix="lib:", default_timeout=100)
    config = {"CACHE_TYPE": "RedisCache", "CACHE_REDIS_HOST": host, "CACHE_REDIS_PORT": int(port)}
else:
    c = MemcachedCache([sys.argv[1]], key_prefix="lib:", default_timeout=100)
    config = {"CACHE_TYPE": "MemcachedCache", "CACHE_MEMCACHED_SERVERS": [sys.argv[1]]}
c.clear()
print(c.set("a", {"x": [1, None]}), c.get("a"), c.get("none"), c.has("a"), c.has("none"))
print(c.add("a", 1), c.add("b", "2"), c.get("b"), c.delete("b"), c.delete("b"))
print(sorted(c.set_many({"m1": 1, "m2": "two"})), c.get_many("m1", "m2", "m3"))
print(c.get_dict("m1", "m3"))
print(sorted(c.delete_many("m1", "m2")), c.get("m1"))
print(c.inc("n", 8), c.dec("n", 3), c.inc("n"), c.get("n"), c.set("forever", 1, timeout=0))
print(c.get("forever"), bool(c.clear()), c.get("a"), c.get("forever"))

app = Flask(__name__)
app.config.update(config, CACHE_KEY_PREFIX="flask:", CACHE_DEFAULT_TIMEOUT=100)
cache = Cache(app)
called = []


@app.route("/page/<name>")
@cache.cached()
def page(name):
    called.append(name)
    return f"page {name}"


@cache.memoize()
def doubled(value):
    called.append(value)
    return value * 2


client = app.test_client()
print([client.get(f"/page/{name}").text for name in "aab"], called)
with app.app_context():
    print(doubled(2), doubled(2), doubled(3), called)
    cache.delete_memoized(doubled, 2)
    print(doubled(2), doubled(3), called)
    print(cache.set_many({"x": 1, "y": 2}), cache.get_many("x", "y", "z"))
    print(cache.clear(), cache.get("x"), client.get("/page/a").text, called)
