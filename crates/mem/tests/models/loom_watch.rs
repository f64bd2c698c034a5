//! The readiness protocol of the key-value cache's shared memory under loom: watch words, ready
//! bitmap and the sleep on its word. Run with
//! `cargo xtask loom`.
use loom::thread;
use rackpool_core::seam::Mem;
use rackpool_mem::ring::bitmap::Bitmap;
use rackpool_mem::ring::watch;
use rackpool_mem::window::Window;
use std::time::Duration;

/// How many requests a client has published, a word each.
const REQUESTS: u64 = 128;
/// The watch words.
const WATCHES: u64 = 192;

/// As in `loom_ring.rs`: few preemptions suffice.
fn model(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

fn request_of(client: u32) -> u64 {
    REQUESTS + 8 * u64::from(client)
}

fn watch_of(client: u32) -> u64 {
    WATCHES + 8 * u64::from(client)
}

/// A client that publishes `count` requests, one after the other without waiting.
fn client(window: &Window, number: u32, count: u64) -> thread::JoinHandle<()> {
    let window = window.clone();
    thread::spawn(move || {
        let bitmap = Bitmap::attach_small(window.clone(), 1);
        for request in 1..=count {
            window.store(request_of(number), request);
            if !watch::is_watched(&window, watch_of(number)) && bitmap.set(number) {
                bitmap.wake();
            }
        }
    })
}

/// The server's loop: bits, watched clients, the end of watching, sleep. `end` stops to watch one.
fn serve(
    window: &Window,
    clients: u32,
    count: u64,
    end: fn(&Window, u64, &mut dyn FnMut() -> bool) -> bool,
) {
    let bitmap = Bitmap::attach_small(window.clone(), 1);
    let mut served = vec![0; clients as usize];
    while served.iter().any(|served| *served < count) {
        let bits = bitmap.take(0);
        for client in (0..clients).filter(|client| bits & (1 << client) != 0) {
            let at = watch_of(client);
            watch::begin(window, at);
            loop {
                served[client as usize] = window.load(request_of(client));
                let mut is_ready = || window.load(request_of(client)) > served[client as usize];
                if end(window, at, &mut is_ready) {
                    break;
                }
            }
        }
        if served.iter().any(|served| *served < count) {
            bitmap.sleep(Duration::MAX);
        }
    }
}

#[test]
fn a_client_that_is_watched_or_not_is_always_served() {
    model(3, || {
        let window = Window::heap(256);
        let client = client(&window, 0, 3);
        serve(&window, 1, 3, |window, at, is_ready| watch::end(window, at, is_ready));
        client.join().unwrap();
    });
}

#[test]
fn two_clients_and_a_server_that_sleeps_lose_no_wake_up() {
    model(2, || {
        let window = Window::heap(256);
        let clients = [client(&window, 0, 1), client(&window, 1, 1)];
        serve(&window, 2, 1, |window, at, is_ready| watch::end(window, at, is_ready));
        for client in clients {
            client.join().unwrap();
        }
    });
}

/// The model is worth something only if it finds what the second look prevents: a client that sent
/// a request and saw that it was watched, and a server that sleeps.
#[test]
#[should_panic(expected = "deadlock")]
fn without_the_second_look_a_request_is_never_served() {
    model(3, || {
        let window = Window::heap(256);
        let client = client(&window, 0, 2);
        serve(&window, 1, 2, |window, at, _| watch::end(window, at, || false));
        client.join().unwrap();
    });
}
