"""Celery's result back end, with a worker in this process and no broker outside of it."""
import sys
import celery
from celery.contrib.testing.worker import start_worker

kind = sys.argv[2]
scheme = "redis://{}/2" if kind == "redis" else "cache+memcached://{}/"
app = celery.Celery("results", broker="memory://", backend=scheme.format(sys.argv[1]))
app.conf.update(result_expires=100, task_track_started=True, result_chord_retry_interval=0.05,
                broker_transport_options={"polling_interval": 0.01})


@app.task
def add(a, b):
    return a + b


@app.task
def total(numbers):
    return sum(numbers)


@app.task
def fails():
    raise KeyError("on purpose")


def tried(call, *words, **named):
    try:
        return call(*words, **named)
    except Exception as error:
        return type(error).__name__, str(error)


backend = app.backend
stored = tried(backend.store_result, "an-id", {"x": [1, None]}, "SUCCESS")
print(stored, tried(backend.get_result, "an-id"), tried(backend.get_state, "an-id"))
if kind == "redis":
    sys.exit()
print(backend.get_state("none"), backend.forget("an-id"), backend.get_state("an-id"))
with start_worker(app, perform_ping_check=False, pool="solo", loglevel="ERROR", shutdown_timeout=5):
    result = add.delay(2, 3)
    print(result.get(timeout=10, interval=0.01), result.state, result.successful())
    print(tried(fails.delay().get, timeout=10, interval=0.01))
    many = celery.group(add.s(n, n) for n in range(10))()
    many.save()
    print(many.get(timeout=10, interval=0.01),
          celery.result.GroupResult.restore(many.id).results == many.results)
    print(celery.chain(add.s(1, 2), add.s(10))().get(timeout=10, interval=0.01))
    print(celery.chord([add.s(n, 1) for n in range(5)])(total.s()).get(timeout=10, interval=0.01))
    print(result.forget(), backend.get_state(result.id))
