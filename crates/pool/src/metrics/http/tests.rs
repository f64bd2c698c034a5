//! Requests as they come, right and wrong, and readers that keep the thread from nothing.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn read(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

fn ask(addr: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(addr);
    stream.write_all(request).unwrap();
    let _ = stream.shutdown(Shutdown::Write);
    read(stream)
}

fn here() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// An endpoint that counts how often its counters were asked for.
fn endpoint(token: Option<Secret>) -> Endpoint {
    let count = AtomicU64::new(0);
    let pages = move |page| match page {
        // Relaxed: for one thread.
        Page::Metrics => Ok(format!("answer {}\n", count.fetch_add(1, Ordering::Relaxed) + 1)),
        Page::Live => Ok("live\n".into()),
        Page::Ready => Err("not yet".into()),
    };
    Endpoint::start(here(), token, Box::new(pages)).unwrap()
}

#[test]
fn a_request_gets_a_fresh_page_and_the_connection_ends() {
    let endpoint = endpoint(None);
    let addr = endpoint.local_addr();
    let first = ask(addr, GET);
    assert!(first.starts_with("HTTP/1.1 200 OK\r\n"), "{first}");
    assert!(first.contains("text/plain; version=0.0.4"), "{first}");
    assert!(first.contains("Content-Length: 9\r\n"), "{first}");
    assert!(first.ends_with("\r\n\r\nanswer 1\n"), "{first}");
    let head = ask(addr, b"HEAD /metrics?x=y HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(head.contains("Content-Length: 9\r\n"), "{head}");
    // As a user types it, byte by byte, with more behind it than the request.
    let mut slow = connect(addr);
    slow.set_nodelay(true).unwrap();
    for byte in b"GET /metrics?a=b&c HTTP/1.1\n\nGET /met" {
        slow.write_all(&[*byte]).unwrap();
    }
    assert!(read(slow).ends_with("answer 3\n"));
    for target in ["/livez", "http://proxied/livez?x"] {
        let request = format!("GET {target} HTTP/1.1\r\n\r\n");
        assert!(ask(addr, request.as_bytes()).ends_with("\r\n\r\nlive\n"));
    }
    let not = ask(addr, b"GET /readyz HTTP/1.1\r\n\r\n");
    assert!(not.starts_with("HTTP/1.1 503 ") && not.ends_with("\r\n\r\nnot yet\n"), "{not}");
}

#[test]
fn wrong_requests_are_refused_and_answered_to_their_end() {
    let endpoint = endpoint(None);
    let long = [b"GET /metrics HTTP/1.1\r\nx: ".as_slice(), &[b'a'; 70_000]].concat();
    let many = [b"GET /metrics HTTP/1.1\r\n".as_slice(), &b"X: y\r\n".repeat(1200)].concat();
    let body = [b"POST /metrics HTTP/1.1\r\nContent-Length: 100000\r\n\r\n".as_slice(), &long];
    for (request, status) in [
        (b"POST /metrics HTTP/1.1\r\n\r\n".as_slice(), "405"),
        (&body.concat(), "405"),
        (b"GET / HTTP/1.1\r\n\r\n", "404"),
        (b"GET /metrics/../livez HTTP/1.1\r\n\r\n", "404"),
        (b"GET /metrics\r\n\r\n", "400"),
        (b"GET /metrics SPDY/1\r\n\r\n", "400"),
        (b"\0\xff\r\n\r\n", "400"),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", "400"),
        (b"GET /metrics HTTP/1.1\r\n", "400"),
        (b"", "400"),
        (&long, "431"),
        (&many, "431"),
    ] {
        let answer = ask(endpoint.local_addr(), request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
    }
}

#[test]
fn nobody_waits_for_those_who_say_or_read_nothing() {
    let endpoint = endpoint(None);
    let addr = endpoint.local_addr();
    let start = Instant::now();
    // Three times as many as have a place.
    let mut silent: Vec<TcpStream> =
        (0..3 * METRICS_CONNECTIONS_MAX).map(|_| connect(addr)).collect();
    for half in silent.iter_mut().step_by(2) {
        let _ = half.write(b"GET /me");
    }
    for _ in 0..20 {
        assert!(ask(addr, GET).starts_with("HTTP/1.1 200 OK"));
    }
    // One at a time would have been given seconds each.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    // A connection that says nothing is not waited for any longer, though there is room.
    let last = silent.pop().unwrap();
    drop(silent);
    assert_eq!(read(last), "");
    let held: Vec<TcpStream> = (0..METRICS_CONNECTIONS_MAX).map(|_| connect(addr)).collect();
    let stop = Instant::now();
    drop(endpoint);
    assert!(stop.elapsed() < Duration::from_secs(5), "{:?}", stop.elapsed());
    drop(held);
}

#[test]
fn who_has_a_token_reads_the_counters_and_everybody_sees_whether_the_server_lives() {
    let endpoint = endpoint(Some(Secret::new(b"a token of some length").unwrap()));
    let with = |line: &str| {
        let request = format!("GET /metrics HTTP/1.1\r\n{line}\r\n\r\n");
        ask(endpoint.local_addr(), request.as_bytes())
    };
    for wrong in [
        "Host: x",
        "Authorization: Bearer a token of some lengt",
        "Authorization: Bearer a token of some length2",
        "Authorization: Bearer",
        "Authorization: Basic a token of some length",
        "Authorization: a token of some length",
        "X-Authorization: Bearer a token of some length",
    ] {
        let answer = with(wrong);
        assert!(answer.starts_with("HTTP/1.1 401 Unauthorized\r\n"), "{wrong}: {answer}");
        assert!(answer.contains("\r\nWWW-Authenticate: Bearer\r\n"), "{answer}");
        assert!(!answer.contains("answer"), "{answer}");
    }
    assert!(with("authorization: bearer a token of some length").ends_with("answer 1\n"));
    let live = ask(endpoint.local_addr(), b"GET /livez HTTP/1.1\r\n\r\n");
    assert!(live.starts_with("HTTP/1.1 200 "), "{live}");
}

#[test]
fn other_machines_read_nothing_without_a_token_and_an_address_is_served_once() {
    let pages = || -> Pages { Box::new(|_| Ok(String::new())) };
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let error = Endpoint::start(any, None, pages()).unwrap_err();
    assert_eq!(error.code(), "denied");
    assert!(error.to_string().contains("--metrics-token-file"), "{error}");
    let token = Some(Secret::new(b"a token of some length").unwrap());
    let endpoint = Endpoint::start(any, token, pages()).unwrap();
    let addr = SocketAddr::from(([127, 0, 0, 1], endpoint.local_addr().port()));
    assert!(ask(addr, GET).starts_with("HTTP/1.1 401 "));
    assert_eq!(Endpoint::start(addr, None, pages()).unwrap_err().code(), "io");
}

#[test]
fn a_poll_loop_is_asked_for_each_page_and_one_that_does_not_answer_is_said() {
    let wake = WakeEvent::new().unwrap();
    let place = Place { listen: here(), token: None };
    let ready = |n: &u64| if *n > 3 { Ok(()) } else { Err(format!("{n} is too few")) };
    let (endpoint, door) = start::<u64>(&place, &wake, |n| format!("answer {n}\n"), ready).unwrap();
    let addr = endpoint.local_addr();
    // No poll loop answers: one request after the other is told so, and only the first waits.
    let start = Instant::now();
    for page in ["metrics", "livez", "readyz", "metrics", "livez", "readyz"] {
        let answer = ask(addr, format!("GET /{page} HTTP/1.1\r\n\r\n").as_bytes());
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("not answer"), "{answer}");
    }
    let most = Duration::from_millis(2 * METRICS_SNAPSHOT_MS_MAX);
    assert!(start.elapsed() < most, "{:?}", start.elapsed());
    let stop = WakeEvent::new().unwrap();
    std::thread::scope(|scope| {
        let (wake, stop) = (&wake, &stop);
        scope.spawn(move || {
            let poller = Poller::new().unwrap();
            poller.add(wake, 0, Interest::Read).unwrap();
            poller.add(stop, 1, Interest::Read).unwrap();
            let (mut ready, mut count) = (Vec::new(), 0);
            loop {
                poller.wait(None, &mut ready).unwrap();
                if ready.iter().any(|one| one.token == 1) {
                    return;
                }
                wake.drain();
                door.answer(|| {
                    count += 1;
                    count
                });
            }
        });
        let result = std::panic::catch_unwind(|| {
            // The request that no caller waits for any more may be answered first.
            let answer = |page: &str| ask(addr, format!("GET {page} HTTP/1.1\r\n\r\n").as_bytes());
            let give_up = Instant::now() + Duration::from_secs(20);
            while !answer("/livez").starts_with("HTTP/1.1 200 ") {
                assert!(Instant::now() < give_up);
            }
            while !answer("/readyz").starts_with("HTTP/1.1 200 ") {
                assert!(Instant::now() < give_up);
            }
            assert!(answer("/metrics").contains("\r\n\r\nanswer "));
        });
        stop.notify();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
