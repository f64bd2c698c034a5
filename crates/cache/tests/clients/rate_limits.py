"""limits and Flask-Limiter: counters that run out, in Redis by scripts and in memcached."""
import sys
import threading
import time
from flask import Flask
from flask_limiter import Limiter
from limits import parse, storage, strategies

# A moving window is a list of Redis's, so what stands on that is left out.
uri = f"{sys.argv[2]}://{sys.argv[1]}"
store = storage.storage_from_string(uri)
print(store.check())
if sys.argv[2] == "redis":
    store.storage.flushall()
else:
    store.storage.flush_all()
limits = parse("3/day"), parse("5/year")
for strategy in (strategies.FixedWindowRateLimiter, strategies.FixedWindowElasticExpiryRateLimiter):
    limiter, name = strategy(store), strategy.__name__
    print(name, [limiter.hit(limits[0], name, "a") for _ in range(5)])
    print(limiter.test(limits[0], name, "a"))
    print([limiter.get_window_stats(limit, name, "a")[1] for limit in limits])
    print(limiter.hit(limits[1], name, "a", cost=4), limiter.hit(limits[1], name, "a", cost=2))
    print(limiter.clear(limits[0], name, "a"), limiter.hit(limits[0], name, "a"))
soon = parse("1/second")
limiter = strategies.FixedWindowRateLimiter(store)
while time.time() % 1 > 0.5:
    time.sleep(0.02)
print(limiter.hit(soon, "soon"), limiter.hit(soon, "soon"))
while not limiter.hit(soon, "soon"):
    time.sleep(0.02)
print(limiter.hit(limits[1], "many"))
taken = []
threads = [threading.Thread(target=lambda: taken.append(limiter.hit(limits[1], "many")))
           for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(taken))
if sys.argv[2] == "redis":
    print(store.reset(), limiter.hit(limits[1], "many"))

app = Flask(__name__)
limiter = Limiter(lambda: "one-user", app=app, storage_uri=uri, headers_enabled=True,
                  default_limits=["2 per day"])


@app.route("/limited")
def limited():
    return "served"


@app.route("/free")
@limiter.exempt
def free():
    return "served"


client = app.test_client()
for path in ("/limited", "/limited", "/limited", "/free"):
    answer = client.get(path)
    print(path, answer.status_code, answer.headers.get("X-RateLimit-Remaining"))
