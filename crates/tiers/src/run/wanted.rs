//! What a user wants of a program's memory, as words.

use super::RunError;
use rackpool_mem::numa::{NODES_MAX, list, numbers};
use std::fmt::{self, Display, Formatter};

const WEIGHT_MAX: u16 = 255;
const WEIGHTS_EXAMPLE: &str = "auto, 3:1 for all nodes in turn, or 0=3,1=1; weights are 1 to 255";
const NODES_EXAMPLE: &str = "0, or 0,2-3, ascending";

/// A node and its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub node: u16,
    pub weight: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weighting {
    /// By the bandwidth of the nodes.
    Auto,
    /// A weight for each node with memory, in their order.
    Ratio(Vec<u16>),
    Nodes(Vec<Share>),
}

/// Where a program's memory shall come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    Weighted(Weighting),
    /// Page by page from each in turn.
    Interleave(Vec<u16>),
    /// From others if it is full.
    Preferred(u16),
    /// From no others.
    Membind(Vec<u16>),
}

impl Weighting {
    /// # Errors
    /// [`RunError::Syntax`].
    pub fn parse(text: &str) -> Result<Weighting, RunError> {
        let syntax = || RunError::Syntax {
            text: text.to_owned(),
            what: "weights",
            example: WEIGHTS_EXAMPLE,
        };
        let weight = |text: &str| {
            let weight: Option<u16> = text.parse().ok().filter(|w| (1..=WEIGHT_MAX).contains(w));
            weight.ok_or_else(syntax)
        };
        if text == "auto" {
            return Ok(Weighting::Auto);
        }
        if !text.contains('=') {
            let ratio: Result<Vec<u16>, RunError> = text.split(':').map(weight).collect();
            return ratio.map(Weighting::Ratio);
        }
        let mut shares: Vec<Share> = Vec::new();
        for part in text.split(',') {
            let (node, of_node) = part.split_once('=').ok_or_else(syntax)?;
            let node: Option<u16> = node.parse().ok().filter(|n| u32::from(*n) < NODES_MAX);
            let share = Share { node: node.ok_or_else(syntax)?, weight: weight(of_node)? };
            if shares.iter().any(|other| other.node == share.node) {
                return Err(syntax());
            }
            shares.push(share);
        }
        shares.sort_by_key(|share| share.node);
        Ok(Weighting::Nodes(shares))
    }

    /// The weights that are named, a ratio's for `nodes` in their order; none for auto.
    ///
    /// # Errors
    /// [`RunError::Count`].
    pub fn named(&self, nodes: &[u16]) -> Result<Option<Vec<Share>>, RunError> {
        match self {
            Weighting::Auto => Ok(None),
            Weighting::Nodes(shares) => Ok(Some(shares.clone())),
            Weighting::Ratio(ratio) if ratio.len() == nodes.len() => {
                let pairs = nodes.iter().zip(ratio);
                let shares = pairs.map(|(node, weight)| Share { node: *node, weight: *weight });
                Ok(Some(shares.collect()))
            }
            Weighting::Ratio(ratio) => {
                let (weights, list) = (ratio.len(), list(nodes));
                Err(RunError::Count { weights, nodes: nodes.len(), list })
            }
        }
    }
}

impl Wanted {
    /// A list of nodes as the kernel writes it.
    ///
    /// # Errors
    /// [`RunError::Syntax`].
    pub fn parse_nodes(text: &str) -> Result<Vec<u16>, RunError> {
        let nodes = numbers(text, NODES_MAX).filter(|nodes: &Vec<u16>| !nodes.is_empty());
        let (text, what) = (text.to_owned(), "nodes");
        nodes.ok_or(RunError::Syntax { text, what, example: NODES_EXAMPLE })
    }

    /// The nodes that it names.
    pub(super) fn nodes(&self) -> Vec<u16> {
        match self {
            Wanted::Weighted(Weighting::Nodes(shares)) => shares.iter().map(|s| s.node).collect(),
            Wanted::Weighted(_) => Vec::new(),
            Wanted::Interleave(nodes) | Wanted::Membind(nodes) => nodes.clone(),
            Wanted::Preferred(node) => vec![*node],
        }
    }
}

impl Display for Wanted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::Weighted(Weighting::Auto) => f.write_str("weighted auto"),
            Wanted::Weighted(Weighting::Ratio(ratio)) => {
                let ratio: Vec<String> = ratio.iter().map(u16::to_string).collect();
                write!(f, "weighted {}", ratio.join(":"))
            }
            Wanted::Weighted(Weighting::Nodes(shares)) => {
                write!(f, "weighted {}", shares_text(shares))
            }
            Wanted::Interleave(nodes) => write!(f, "interleave {}", list(nodes)),
            Wanted::Preferred(node) => write!(f, "preferred {node}"),
            Wanted::Membind(nodes) => write!(f, "membind {}", list(nodes)),
        }
    }
}

/// Such as `0=3,1=1`: also what the preloaded library reads.
pub(super) fn shares_text(shares: &[Share]) -> String {
    let parts: Vec<String> =
        shares.iter().map(|Share { node, weight }| format!("{node}={weight}")).collect();
    parts.join(",")
}
