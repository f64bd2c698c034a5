//! What the model of bytes allows and what it refuses.

use super::*;

const A: u64 = 0x20_0000;
const SIZE: u64 = 4096;

fn ns(time: u64) -> Ps {
    Ps::ns(time)
}

struct World {
    model: Bytes,
}

impl World {
    fn new() -> World {
        let mut model = Bytes::default();
        model.allocated(A, SIZE, Backing::Pages, ns(1)).unwrap();
        World { model }
    }

    /// A write from `called` to `done`.
    fn write(&mut self, client: u32, at: u64, bytes: &[u8], called: u64, done: u64) -> WriteId {
        let id = self.begin(client, at, bytes, called);
        self.model.write_done(id, ns(done), ns(done));
        id
    }

    fn begin(&mut self, client: u32, at: u64, bytes: &[u8], called: u64) -> WriteId {
        self.model.write_called(client, A + at, bytes, ns(called)).unwrap()
    }

    fn reads(&mut self, client: u32, at: u64, bytes: &[u8], called: u64, returned: u64) {
        self.model.read(client, A + at, bytes, ns(called), ns(returned)).unwrap();
    }

    fn refuses(&mut self, client: u32, at: u64, bytes: &[u8], called: u64, done: u64) -> String {
        let answer = self.model.read(client, A + at, bytes, ns(called), ns(done));
        answer.expect_err("this read breaks a promise").text
    }
}

#[test]
fn memory_is_zero_until_it_is_written_and_holds_what_was_acknowledged() {
    let mut world = World::new();
    world.reads(1, 100, &[0; 50], 2, 3);
    let text = world.refuses(1, 100, &[0, 7], 4, 5);
    assert!(text.contains("0x07 in the byte 0x200065") && text.contains("never written"), "{text}");
    let data: Vec<u8> = (1..=100).collect();
    world.write(1, 3, &data, 10, 20);
    world.reads(2, 3, &data, 21, 22);
    world.reads(2, 0, &[0, 0, 0, 1, 2], 21, 22);
    world.refuses(2, 0, &[0, 0, 0, 0, 2], 21, 22);
    world.refuses(2, 102, &[100, 1], 21, 22);
    assert!(world.model.looked().bytes_certain > 150);
}

#[test]
fn a_write_under_way_may_be_seen_or_not_and_torn_above_eight_bytes() {
    let mut world = World::new();
    let id = world.begin(1, 0, &[9; 32], 10);
    world.reads(2, 0, &[0; 32], 11, 12);
    world.reads(2, 0, &[[9u8; 16], [0; 16]].concat(), 11, 12);
    world.refuses(2, 0, &[[9u8; 16], [8; 16]].concat(), 11, 12);
    world.model.write_done(id, ns(20), ns(20));
    // The read was called before the write returned.
    world.reads(2, 0, &[[9u8; 16], [0; 16]].concat(), 19, 30);
    world.refuses(2, 0, &[[9u8; 16], [0; 16]].concat(), 21, 30);
    // A write from the future.
    world.begin(1, 64, &[5], 40);
    world.refuses(2, 64, &[5], 31, 39);
}

#[test]
fn a_lost_write_is_found_by_everybody() {
    let mut world = World::new();
    world.write(1, 8, &[1; 8], 10, 20);
    world.write(2, 8, &[2; 8], 30, 40);
    let text = world.refuses(3, 8, &[1; 8], 41, 42);
    assert!(text.contains("allowed: 0x02"), "{text}");
    assert!(text.contains("not allowed any more, or not yet: write 0 of client 1"), "{text}");
    world.refuses(1, 8, &[0; 8], 41, 42);
    world.reads(3, 8, &[2; 8], 41, 42);
    // Concurrent writers: either may be last.
    world.write(1, 16, &[1; 8], 50, 60);
    world.write(2, 16, &[2; 8], 55, 65);
    world.reads(3, 16, &[1; 8], 70, 71);
    world.refuses(3, 16, &[0; 8], 70, 71);
}

#[test]
fn what_somebody_saw_is_there_for_everybody_after() {
    let mut world = World::new();
    world.write(1, 0, &[1; 8], 10, 20);
    world.begin(2, 0, &[2; 8], 30);
    world.reads(3, 0, &[1; 8], 31, 32);
    world.reads(3, 0, &[2; 8], 33, 34);
    world.refuses(4, 0, &[1; 8], 35, 36);
    // Of a write that may tear, only the bytes that were seen.
    world.begin(2, 64, &[2; 16], 40);
    world.reads(3, 64, &[2, 2, 2, 2], 41, 42);
    world.reads(4, 64, &[2, 2, 2, 2, 0, 0, 0, 0], 43, 44);
    world.refuses(4, 64, &[0], 43, 44);
}

#[test]
fn a_piece_of_eight_bytes_is_never_half_of_one_write_and_half_of_another() {
    let mut world = World::new();
    world.begin(1, 0, &[1; 8], 10);
    world.begin(2, 0, &[2; 8], 10);
    for whole in [[0u8; 8], [1; 8], [2; 8]] {
        world.reads(3, 0, &whole, 10, 11);
    }
    for half in [[0u8, 0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 2, 2, 2, 2], [2, 1, 2, 1, 2, 1, 2, 1]] {
        let text = world.refuses(3, 0, &half, 10, 11);
        assert!(text.contains("as one piece"), "{text}");
    }
    // Read as several pieces, it may be that.
    world.reads(3, 0, &[2, 2, 2, 2, 1, 1, 1, 1, 0], 10, 11);
    // A smaller piece may have landed on a larger one, but not under it.
    world.begin(1, 32, &[1; 8], 10);
    world.begin(2, 32, &[2; 4], 10);
    world.reads(3, 32, &[2, 2, 2, 2, 1, 1, 1, 1], 10, 11);
    world.refuses(3, 32, &[0, 0, 0, 0, 1, 1, 1, 1], 10, 11);
    world.refuses(3, 32, &[2, 2, 1, 1, 1, 1, 1, 1], 10, 11);
    // Two halves by one torn write are what docs/semantics.md allows.
    world.begin(1, 63, &[1; 17], 10);
    world.reads(3, 64, &[1, 1, 1, 1, 0, 0, 0, 0], 10, 11);
}

#[test]
fn a_write_of_unknown_outcome_may_land_until_it_is_over() {
    let mut world = World::new();
    let id = world.begin(1, 0, &[1; 8], 10);
    world.write(2, 0, &[2; 8], 30, 40);
    // No client knows of an answer: it may land over the later write.
    world.reads(3, 0, &[1; 8], 50, 51);
    world.model.write_over(id, ns(60));
    world.reads(3, 0, &[1; 8], 70, 71);
    world.write(2, 0, &[3; 8], 80, 90);
    world.refuses(3, 0, &[1; 8], 91, 92);
    // Over, and not known to have landed at all.
    let id = world.begin(1, 8, &[1; 8], 10);
    world.model.write_over(id, ns(20));
    world.reads(3, 8, &[0; 8], 30, 31);
    // Refused: it did nothing.
    let id = world.begin(1, 16, &[1; 8], 10);
    world.model.write_refused(id);
    world.refuses(3, 16, &[1; 8], 30, 31);
    world.reads(3, 16, &[0; 8], 30, 31);
}

#[test]
fn a_store_in_its_buffer_is_seen_by_its_own_client_first() {
    let mut world = World::new();
    let id = world.begin(1, 0, &[1; 8], 10);
    world.model.write_buffered(id, ns(11));
    world.reads(2, 0, &[0; 8], 12, 13);
    world.reads(1, 0, &[1; 8], 12, 13);
    world.refuses(1, 0, &[0; 8], 12, 13);
    // What the own client sees in its buffer is not there for others yet.
    world.reads(2, 0, &[0; 8], 14, 15);
    world.model.write_visible(id, ns(20));
    world.refuses(2, 0, &[0; 8], 21, 22);
}

#[test]
fn freed_pages_are_errors_and_live_ones_are_not() {
    let mut world = World::new();
    let told = |world: &mut World, refusal, called, returned| {
        world.model.refused(1, A + 8, refusal, ns(called), ns(returned))
    };
    let text = told(&mut world, Refusal::NotMapped, 2, 3).unwrap_err().text;
    assert!(text.contains("which is live"), "{text}");
    assert!(told(&mut world, Refusal::Lost, 2, 3).is_err());
    world.write(1, 0, &[7; 8], 4, 5);
    world.model.free_called(A, ns(10));
    told(&mut world, Refusal::NotMapped, 2, 11).unwrap();
    // A reader that began before finds its page as it was, or not at all.
    world.reads(2, 0, &[7; 8], 12, 13);
    world.refuses(2, 0, &[0; 8], 12, 13);
    world.model.freed(A, ns(20));
    world.reads(2, 0, &[7; 8], 19, 25);
    let text = world.refuses(2, 0, &[7; 8], 21, 25);
    assert!(text.contains("freed at"), "{text}");
    told(&mut world, Refusal::NotMapped, 21, 22).unwrap();
    assert!(world.model.allocated(A, SIZE, Backing::Pages, ns(30)).is_err(), "ids are used once");
}

#[test]
fn a_free_that_was_refused_leaves_the_allocation_live() {
    let mut world = World::new();
    world.model.free_called(A, ns(10));
    assert!(world.model.live().all(|live| live.perhaps_freed));
    world.model.free_refused(A);
    assert!(world.model.refused(1, A, Refusal::NotMapped, ns(11), ns(12)).is_err());
    let all: Vec<Live> = world.model.live().collect();
    let live = Live { addr: A, bytes: SIZE, backing: Backing::Pages, perhaps_freed: false };
    assert_eq!(all, [live]);
}

#[test]
fn lost_memory_is_never_read_again() {
    let mut world = World::new();
    world.model.lost(|addr, _| addr == A, ns(10));
    world.reads(1, 0, &[0; 8], 9, 12);
    assert!(world.refuses(1, 0, &[0; 8], 11, 12).contains("lost at"));
    world.model.refused(1, A, Refusal::Lost, ns(11), ns(12)).unwrap();
    assert!(world.model.refused(1, A, Refusal::NotMapped, ns(11), ns(12)).is_err());
    assert_eq!(world.model.live().count(), 0);
}

#[test]
fn an_object_is_handed_out_again_zeroed_and_never_twice() {
    let mut world = World::new();
    let object = A + SIZE;
    let model = &mut world.model;
    model.allocated(object, 64, Backing::Object, ns(1)).unwrap();
    let id = model.write_called(1, object, &[7; 64], ns(2)).unwrap();
    model.write_done(id, ns(3), ns(3));
    let twice = model.allocated(object, 64, Backing::Object, ns(4)).unwrap_err();
    assert!(twice.text.contains("live"), "{}", twice.text);
    assert!(model.allocated(object + 32, 64, Backing::Object, ns(4)).is_err());
    model.free_called(object, ns(5));
    // The answer is not there yet, but another client has it: so it was freed.
    model.allocated(object, 64, Backing::Object, ns(6)).unwrap();
    assert_eq!(model.writes_known(), 0);
    model.read(2, object, &[0; 64], ns(7), ns(8)).unwrap();
    assert!(model.read(2, object, &[7; 64], ns(7), ns(8)).is_err());
    model.free_called(object, ns(9));
    model.read(2, object, &[55; 64], ns(8), ns(10)).unwrap();
    assert!(model.allocated(object, 4096, Backing::Pages, ns(11)).is_err());
    assert!(model.write_called(2, object + 60, &[1; 8], ns(12)).is_err(), "past the end");
}

#[test]
fn forgetting_changes_no_verdict_and_bounds_the_memory() {
    let mut world = World::new();
    for step in 0..1000u64 {
        let value = (step % 250 + 1) as u8;
        world.write(1, 8 * (step % 4), &[value; 8], 10 * step + 10, 10 * step + 15);
        world.model.forget(ns(10 * step + 17));
        assert!(world.model.writes_known() <= 8);
    }
    world.reads(2, 24, &[250; 8], 20_000, 20_001);
    world.refuses(2, 24, &[246; 8], 20_000, 20_001);
    world.refuses(2, 24, &[0; 8], 20_000, 20_001);
    // A long write under shorter ones is kept as long as a byte of it shows.
    world.write(1, 64, &[1; 8], 20_010, 20_011);
    world.write(1, 64, &[2; 7], 20_012, 20_013);
    world.model.forget(ns(20_020));
    world.reads(2, 64, &[2, 2, 2, 2, 2, 2, 2, 1], 20_021, 20_022);
}

mod random {
    use super::*;
    use proptest::prelude::*;

    /// What a plain array does, step by step, with reads that see one moment.
    #[derive(Clone, Debug)]
    enum Step {
        Begin { client: u32, at: usize, len: usize },
        Land { write: usize, part: usize },
        Acknowledge { write: usize },
        Read { client: u32, at: usize, len: usize },
        Forget,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..3u32, 0..40usize, 1..12usize).prop_map(|(c, a, l)| Step::Begin {
                client: c,
                at: a,
                len: l
            }),
            (any::<usize>(), any::<usize>()).prop_map(|(w, p)| Step::Land { write: w, part: p }),
            any::<usize>().prop_map(|write| Step::Acknowledge { write }),
            (0..3u32, 0..40usize, 1..12usize).prop_map(|(c, a, l)| Step::Read {
                client: c,
                at: a,
                len: l
            }),
            Just(Step::Forget),
        ];
        proptest::collection::vec(step, 1..120)
    }

    struct Pending {
        id: WriteId,
        at: usize,
        data: Vec<u8>,
        landed: Vec<bool>,
    }

    impl Pending {
        fn land(&mut self, memory: &mut [u8], byte: usize) {
            memory[self.at + byte] = self.data[byte];
            self.landed[byte] = true;
        }

        fn land_some(&mut self, memory: &mut [u8], part: usize) {
            if is_single(A + self.at as u64, self.data.len()) {
                (0..self.data.len()).for_each(|byte| self.land(memory, byte));
            } else {
                self.land(memory, part % self.data.len());
            }
        }

        fn land_rest(&mut self, memory: &mut [u8], part: usize) {
            let single = is_single(A + self.at as u64, self.data.len());
            if single && !self.landed[0] {
                self.land_some(memory, part);
            }
            for byte in (0..self.data.len()).filter(|_| !single) {
                if !self.landed[byte] {
                    self.land(memory, byte);
                }
            }
        }
    }

    /// Plays the steps on a plain array; `damage` may falsify what a read found.
    fn play(steps: &[Step], mut damage: impl FnMut(&mut Vec<u8>)) -> Result<(), Violation> {
        let (mut world, mut memory) = (World::new(), vec![0u8; 64]);
        let mut pending: Vec<Pending> = Vec::new();
        for (now, step) in steps.iter().enumerate() {
            let now = ns(10 * now as u64 + 10);
            match step {
                Step::Begin { client, at, len } => {
                    let data: Vec<u8> =
                        (0..*len).map(|b| (now.0 / 10_000) as u8 ^ b as u8).collect();
                    let id = world.model.write_called(*client, A + *at as u64, &data, now)?;
                    let landed = vec![false; *len];
                    pending.push(Pending { id, at: *at, data, landed });
                }
                Step::Land { write, part } if !pending.is_empty() => {
                    let index = write % pending.len();
                    pending[index].land_some(&mut memory, *part);
                }
                Step::Acknowledge { write } if !pending.is_empty() => {
                    let mut done = pending.swap_remove(write % pending.len());
                    done.land_rest(&mut memory, 0);
                    world.model.write_done(done.id, now, now);
                }
                Step::Read { client, at, len } => {
                    let mut found = memory[*at..*at + *len].to_vec();
                    damage(&mut found);
                    let (called, returned) = (now, now + ns(1));
                    world.model.read(*client, A + *at as u64, &found, called, returned)?;
                }
                Step::Forget => world.model.forget(now),
                _ => {}
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn a_memory_that_keeps_the_rules_is_never_accused(steps in steps()) {
            prop_assert_eq!(play(&steps, |_| ()), Ok(()));
        }

        #[test]
        fn a_bit_that_nobody_wrote_is_always_found(steps in steps()) {
            let mut read = false;
            // Steps number fewer than 128, so no write has this bit.
            let answer = play(&steps, |found| {
                found[0] |= 0x80;
                read = true;
            });
            prop_assert_eq!(answer.is_err(), read);
        }
    }
}
