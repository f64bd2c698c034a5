//! The judge of commands finds nothing in what channels do, and everything that is planted.

use rackpool_rack::dram::checker::{Checker, Rule, Violation};
use rackpool_rack::dram::stream::{AddressOrder, ArrivalRate, RequestStream};
use rackpool_rack::dram::timing::{DDR4_2400, DDR5_4800, Timing};
use rackpool_rack::dram::{Channel, Command, CommandKind, Config};

/// Runs a stream under the eyes of a checker of another configuration.
fn judged(config: &Config, judge: &Config, stream: &RequestStream) -> (u64, Option<Violation>) {
    let mut channel = Channel::new(config).unwrap();
    channel.keep_commands();
    let (mut checker, mut commands) = (Checker::new(judge), Vec::new());
    let mut found = None;
    stream.run(0, &mut channel, |channel| {
        channel.take_commands(&mut commands);
        for command in commands.drain(..) {
            if found.is_none() {
                found = checker.check(&command).err();
            }
        }
    });
    (checker.commands(), found)
}

/// Streams that meet every rule: both patterns, both paces, writes between reads.
fn streams(requests: u64) -> impl Iterator<Item = RequestStream> {
    let kinds = [
        (AddressOrder::Random, ArrivalRate::Saturated, 333),
        (AddressOrder::Sequential, ArrivalRate::Saturated, 333),
        (AddressOrder::Random, ArrivalRate::Every(20), 333),
        (AddressOrder::Sequential, ArrivalRate::Every(9), 100),
        (AddressOrder::Random, ArrivalRate::Saturated, 0),
        (AddressOrder::Random, ArrivalRate::Every(7), 900),
    ];
    kinds.into_iter().enumerate().map(move |(number, (pattern, pace, writes_permille))| {
        RequestStream { pattern, pace, writes_permille, requests, seed: number as u64 }
    })
}

fn configs() -> Vec<Config> {
    let mut configs: Vec<Config> =
        ["ddr4-2400", "ddr5-4800", "dracksim"].map(|name| Config::preset(name).unwrap()).into();
    let mut two = Config::new(DDR4_2400);
    two.geometry.ranks = 2;
    two.map.0 = "ro-co-ba-bg-ra-lo^".into();
    configs.push(two);
    let mut closed = Config::new(DDR5_4800);
    closed.geometry.ranks = 2;
    closed.page = rackpool_rack::dram::RowPolicy::Closed;
    configs.push(closed);
    configs
}

fn nothing_is_found(commands_min: u64) {
    let (configs, mut all, mut seed) = (configs(), 0, 0);
    while all < commands_min {
        for config in &configs {
            for mut stream in streams(20_000) {
                stream.seed += seed;
                let (commands, found) = judged(config, config, &stream);
                assert_eq!(found, None, "{stream:?} with {config:?}");
                all += commands;
            }
        }
        seed += 100;
    }
}

#[test]
fn the_checker_finds_nothing_in_two_million_commands() {
    nothing_is_found(2_000_000);
}

#[test]
#[ignore = "15 s in a release build"]
fn the_checker_finds_nothing_in_a_hundred_million_commands() {
    nothing_is_found(100_000_000);
}

/// The right configuration, and what makes it wrong.
type Planted = (Config, fn(&mut Timing));

/// The scheduler holds one constant a cycle too small; the checker knows the right one.
#[test]
fn each_constant_that_is_a_cycle_too_small_is_found_by_its_name() {
    let ddr4 = |change: fn(&mut Timing)| (Config::new(DDR4_2400), change);
    let ddr5 = |change: fn(&mut Timing)| (Config::new(DDR5_4800), change);
    let ranks = |change: fn(&mut Timing)| {
        let mut config = Config::new(DDR4_2400);
        config.geometry.ranks = 2;
        config.map.0 = "ro-co-ba-bg-ra".into();
        (config, change)
    };
    let mut slow = Config::new(DDR4_2400);
    slow.timing.t_rc += 3;
    let mut spread = Config::new(DDR4_2400);
    spread.timing.t_rrd_s = 7;
    spread.timing.t_rrd_l = 7;
    let planted: [(Rule, Planted); 18] = [
        (Rule::Rcd, ddr4(|t| t.t_rcd -= 1)),
        (Rule::Rp, ddr4(|t| t.t_rp -= 1)),
        (Rule::Ras, ddr4(|t| t.t_ras -= 1)),
        (Rule::Rc, (slow, |t| t.t_rc -= 1)),
        (Rule::RrdS, (spread, |t| t.t_rrd_s -= 1)),
        (Rule::RrdL, ddr4(|t| t.t_rrd_l -= 1)),
        (Rule::Faw, ddr4(|t| t.t_faw -= 1)),
        (
            Rule::CcdS,
            (Config { map: interleaved(), ..Config::new(DDR5_4800) }, |t| {
                t.t_ccd_s -= 1;
                t.burst -= 1;
            }),
        ),
        (Rule::CcdL, ddr4(|t| t.t_ccd_l -= 1)),
        (Rule::CcdL, ddr5(|t| t.t_ccd_l_wr -= 1)),
        (Rule::Wr, ddr4(|t| t.t_wr -= 1)),
        (Rule::Rtp, ddr4(|t| t.t_rtp -= 1)),
        (Rule::WtrS, (Config { map: interleaved(), ..Config::new(DDR4_2400) }, |t| t.t_wtr_s -= 1)),
        (Rule::WtrL, ddr4(|t| t.t_wtr_l -= 1)),
        (Rule::DataBus, ddr4(|t| t.turnaround -= 1)),
        (Rule::DataBus, ranks(|t| t.rank_switch -= 1)),
        (Rule::Ppd, ddr5(|t| t.t_ppd -= 1)),
        (Rule::Rfc, ddr4(|t| t.t_rfc -= 1)),
    ];
    for (rule, (right, change)) in planted {
        let mut wrong = right.clone();
        change(&mut wrong.timing);
        let found = streams(20_000).find_map(|stream| judged(&wrong, &right, &stream).1);
        let found = found.unwrap_or_else(|| panic!("{rule:?} was not found"));
        assert_eq!(found.rule, rule, "{found}");
        assert!(found.earliest > found.command.at, "{found}");
        assert_eq!(streams(20_000).find_map(|stream| judged(&right, &right, &stream).1), None);
    }
}

fn interleaved() -> rackpool_rack::dram::map::MapName {
    rackpool_rack::dram::map::MapName::interleaved()
}

/// Commands that no constant is about.
#[test]
fn disorder_is_found_by_its_name() {
    use CommandKind::{Activate, Precharge, PrechargeAll, Read, ReadAuto, Refresh, Write};
    let command = |at, kind, bank, row| Command { at, kind, bank, row, column: 0 };
    let found = |commands: &[Command]| {
        let mut checker = Checker::new(&Config::new(DDR4_2400));
        commands.iter().find_map(|command| checker.check(command).err()).map(|found| found.rule)
    };
    let open = command(100, Activate, 0, 5);
    assert_eq!(found(&[open, command(116, Read, 0, 5), command(139, Precharge, 0, 0)]), None);
    assert_eq!(found(&[open, command(100, Activate, 4, 5)]), Some(Rule::CommandBus));
    assert_eq!(found(&[open, command(99, Precharge, 1, 0)]), Some(Rule::CommandBus));
    assert_eq!(found(&[open, command(200, Activate, 0, 5)]), Some(Rule::BankIsOpen));
    assert_eq!(found(&[open, command(200, Read, 0, 6)]), Some(Rule::RowState));
    assert_eq!(found(&[open, command(200, Write, 1, 5)]), Some(Rule::RowState));
    let auto = [open, command(116, ReadAuto, 0, 5)];
    assert_eq!(found(&[auto[0], auto[1], command(130, Read, 0, 5)]), Some(Rule::RowState));
    // It closes at 139 and is closed at 155.
    assert_eq!(found(&[auto[0], auto[1], command(154, Activate, 0, 5)]), Some(Rule::Rp));
    assert_eq!(found(&[auto[0], auto[1], command(155, Activate, 0, 5)]), None);
    assert_eq!(found(&[open, command(200, Refresh, 0, 0)]), Some(Rule::RowState));
    let closed = [open, command(139, PrechargeAll, 0, 0)];
    assert_eq!(found(&[closed[0], closed[1], command(154, Refresh, 0, 0)]), Some(Rule::Rp));
    assert_eq!(found(&[closed[0], closed[1], command(155, Refresh, 0, 0)]), None);
    // Eight refreshes may be missing, not nine.
    assert_eq!(found(&[command(9 * 9364 - 1, Activate, 0, 5)]), None);
    assert_eq!(found(&[command(9 * 9364, Activate, 0, 5)]), Some(Rule::Refi));
}
