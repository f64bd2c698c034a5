//! Processes that hand small objects out themselves are killed at random moments, and their daemon
//! with them: no object has two owners, and each death leaves one without a name at most. Real
//! processes; see `tools`.

use crate::tools::objects::{OBJECTS, free};
use crate::tools::stage::Stage;
use crate::tools::{PATIENCE, Proc, Random, busy, seed, wait_until};
use rackpool::FabricChoice::Tcp;
use rackpool::{GAddr, Placement};

const KILLS: u64 = 20;
const PROCESSES: usize = 3;

#[test]
fn killed_processes_leave_no_object_that_they_did_not_hand_out() {
    let _turn = busy();
    let mut stage = Stage::new(&["size=64M&pages=64K"]);
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let mut random = Random::new(seed("killed_objects"));
    let before = stage.stats(&pool)[0].clone();
    let words: Vec<GAddr> =
        (0..PROCESSES).map(|_| handle.alloc(8 * OBJECTS, Placement::Local).unwrap()).collect();
    let start = |stage: &Stage, words: GAddr, seed: u64| {
        let args = [stage.addr.clone(), words.0.to_string(), seed.to_string()];
        let proc = Proc::start("objects", "objects", &args);
        proc.ready().unwrap_or_else(|error| panic!("no process: {error}"));
        proc
    };
    let mut procs: Vec<Proc> =
        words.iter().map(|words| start(&stage, *words, random.next())).collect();
    let mut thousands = 0;
    for kill in 0..KILLS {
        std::thread::sleep(random.millis(20, 150));
        let victim = random.below(PROCESSES as u64) as usize;
        let with_daemon = kill % 4 == 3;
        if with_daemon {
            stage.kill_daemon(0);
        }
        procs[victim].kill();
        if with_daemon {
            stage.start_daemon(0);
        }
        for proc in &procs {
            while let Some(line) = proc.try_line() {
                assert_eq!(line, "n", "{}", proc.stderr());
                thousands += 1;
            }
        }
        procs[victim] = start(&stage, words[victim], random.next());
    }
    procs.iter_mut().for_each(Proc::kill);
    eprintln!("killed_objects: {thousands} thousand allocations and frees");
    let deaths = KILLS + PROCESSES as u64;
    for words in &words {
        (0..OBJECTS).for_each(|word| free(&mut handle, *words, word).unwrap());
        handle.free(*words, 8 * OBJECTS).unwrap();
    }
    drop(handle);
    wait_until("objects come back", PATIENCE, || {
        let now = &stage.stats(&pool)[0];
        let left = now.allocations - before.allocations;
        (left > deaths || now.slots_used > before.slots_used).then(|| format!("{now:?}"))
    });
}
