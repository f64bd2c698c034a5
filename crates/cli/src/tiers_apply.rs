//! `rackpool tiers apply`: the kernel's weights of weighted interleave, which hold for the whole
//! machine. In: weights in words, from a profile, or from a file that was saved. Out: what is set,
//! for people and as JSON, and on demand a file by which it is put back. Without a word of change
//! nothing is written; a change is checked and saved before the first write.

use crate::args::TiersApplyArgs;
use crate::failure::{Failure, Result};
use crate::tiers_weights::{Advice, ProfileQuery};
use crate::{interrupt, output, tiers};
use rackpool_stats::table::TextTable;
use rackpool_tiers::kernel_weights::{KernelWeights, KernelWeightsError, WeightsChange};
use rackpool_tiers::run::{RunError, Weighting};
use rackpool_tiers::topology::{Sources, Topology};
use rackpool_tiers::weights::WEIGHT_MAX_DEFAULT;
use serde_json::{Value, json};
use std::path::Path;

/// What is said of a change.
const SCOPE: &str = "The weights hold for the whole machine, for memory that programs with \
                     weighted interleave take from now on; what they have stays where it is.";

pub fn run(args: &TiersApplyArgs) -> Result<()> {
    let json = output::open_if(args.json.as_ref())?;
    let topology = Topology::read(&Sources::of_sysfs(&args.sysfs)).map_err(tiers::failure)?;
    let before = KernelWeights::read(&args.sysfs).map_err(failure)?;
    let WantedChange { change, doubts } = wanted(args, &topology)?;
    let mut text = doubts;
    let (now, was) = match &change {
        None => (before, None),
        Some(change) if args.dry_run => {
            before.check(change).map_err(failure)?;
            text.push_str(&would(change));
            (before, None)
        }
        Some(change) => {
            let now = apply(args, &before, change, &mut text)?;
            (now, Some(before))
        }
    };
    if let Some(json) = json {
        json.write(format!("{}\n", output::json(&as_json(&now, was.as_ref()))?))?;
    }
    if topology.has_one_memory() {
        text.push_str(&format!("{}\n", tiers::ONE_MEMORY));
    }
    output::print(&format!("{}\n{text}", table(&now, was.as_ref())))
}

fn failure(error: KernelWeightsError) -> Failure {
    Failure::new(error.code(), error.to_string())
}

/// What a user wants set, if anything, and why the figures that it comes from may not hold.
struct WantedChange {
    change: Option<WeightsChange>,
    doubts: String,
}

fn wanted(args: &TiersApplyArgs, topology: &Topology) -> Result<WantedChange> {
    let mut doubts = String::new();
    let change = match (&args.weighted, &args.profile, &args.restore, args.auto) {
        (Some(text), ..) => Some(named(text, topology)?),
        (_, Some(path), ..) => {
            let &TiersApplyArgs { cpu_node, reads, max, .. } = args;
            let max = max.unwrap_or(WEIGHT_MAX_DEFAULT);
            let query = ProfileQuery { cpu_node, reads, demand: None, max };
            let advice = Advice::of(path, &query)?;
            doubts = advice.doubts();
            // At most 255, as the query is.
            let weights = advice.report.best.weights.iter().map(|weight| *weight as u16);
            Some(WeightsChange::Set(advice.nodes.iter().copied().zip(weights).collect()))
        }
        (_, _, Some(path), _) => {
            Some(WeightsChange::Restore(KernelWeights::load(path).map_err(failure)?))
        }
        (.., true) => Some(WeightsChange::Auto),
        _ => None,
    };
    Ok(WantedChange { change, doubts })
}

/// Weights in words. A ratio is of all nodes with memory, whatever this process may use of them.
fn named(text: &str, topology: &Topology) -> Result<WeightsChange> {
    let wrong = |error: RunError| Failure::new(error.code(), error.to_string());
    let nodes = topology.nodes.iter().filter(|node| node.memory_bytes != Some(0));
    let nodes: Vec<u16> = nodes.map(|node| node.id).collect();
    let shares = Weighting::parse(text).and_then(|weighting| weighting.named(&nodes));
    let Some(shares) = shares.map_err(wrong)? else {
        return Err(Failure::usage(
            "`auto` is no weight: --auto has the kernel choose, --profile FILE takes the weights \
             of a profile",
        ));
    };
    Ok(WeightsChange::Set(shares.iter().map(|share| (share.node, share.weight)).collect()))
}

/// Saves what is set, changes it, and says what holds now.
fn apply(
    args: &TiersApplyArgs,
    before: &KernelWeights,
    change: &WeightsChange,
    text: &mut String,
) -> Result<KernelWeights> {
    before.check(change).map_err(failure)?;
    if let Some(path) = &args.save {
        save(path, before, args.overwrite)?;
    }
    interrupt::end_by_itself(interrupt::shutdown()?);
    let changed = before.change(&args.sysfs, change).map_err(failure)?;
    text.push_str(&format!("{SCOPE}\n"));
    if changed.is_auto_refused {
        text.push_str(
            "Until it was changed the kernel chose these weights itself (auto). It does not take \
             that back: the firmware says no bandwidths. They stay as they are.\n",
        );
    }
    if let Some(path) = &args.save {
        let path = path.display();
        text.push_str(&format!(
            "Saved in {path}: what was set before.\n  -> rackpool tiers apply --restore {path}\n"
        ));
    }
    Ok(changed.now)
}

fn save(path: &Path, before: &KernelWeights, may_replace: bool) -> Result<()> {
    if path == Path::new("-") {
        return Err(Failure::usage("--save needs a file to keep; --json - is standard output"));
    }
    // A link that leads nowhere is there, too.
    if !may_replace && path.symlink_metadata().is_ok() {
        return Err(Failure::new(
            "exists",
            format!(
                "{} is there and is not replaced, nothing was changed; name another file, or \
                 --overwrite it",
                path.display()
            ),
        ));
    }
    output::open(path)?.write(before.saved())
}

/// What a change would write.
fn would(change: &WeightsChange) -> String {
    let (weights, is_auto) = change.parts();
    let mut parts: Vec<String> =
        weights.iter().map(|(node, weight)| format!("{node}={weight}")).collect();
    if is_auto {
        parts.push("auto".to_owned());
    }
    format!("Would set {}; nothing was changed.\n", parts.join(","))
}

fn table(now: &KernelWeights, was: Option<&KernelWeights>) -> String {
    let mut table = TextTable::new(&["NODE", "BEFORE", "WEIGHT"]);
    for (node, weight) in &now.weights {
        let before = was.and_then(|was| was.weights.get(node)).map(u16::to_string);
        table.row([node.to_string(), before.unwrap_or_default(), weight.to_string()]);
    }
    let by = match now.auto {
        Some(true) => "Chosen by the kernel (auto).",
        Some(false) => "Set by hand; --auto has the kernel choose.",
        None => "This kernel does not choose weights itself.",
    };
    format!("{}\n{by}", table.show())
}

fn state_json(state: &KernelWeights) -> Value {
    let nodes = state.weights.iter().map(|(id, weight)| json!({ "id": id, "weight": weight }));
    json!({ "nodes": nodes.collect::<Vec<_>>(), "auto": state.auto })
}

/// What is set, and what was before a change: null without one.
fn as_json(now: &KernelWeights, was: Option<&KernelWeights>) -> Value {
    let mut answer = state_json(now);
    answer["schema"] = json!("rackpool-tiers-apply/1");
    answer["before"] = was.map_or(Value::Null, state_json);
    answer
}
