//! Names of policies, as the command line takes them.

use super::{Choice, Order, Policy, Window};
use std::fmt;
use std::str::FromStr;

/// A text that names no policy. Correct it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{name}` is no placement: write local-first, alternate, random, round-robin, least-loaded, \
     smart-idle or even, or two of them such as alternate+smart-idle; smart-idle:250ms and \
     even:250us count in windows of that length"
)]
pub struct PolicyNameError {
    pub name: String,
}

impl FromStr for Policy {
    type Err = PolicyNameError;

    fn from_str(text: &str) -> Result<Self, PolicyNameError> {
        let wrong = || PolicyNameError { name: text.to_owned() };
        let policy = match text.split_once('+') {
            Some((order, choice)) => order_of(order)
                .zip(choice_of(choice))
                .map(|(order, choice)| Policy { order, choice }),
            None => match order_of(text) {
                Some(order) => Some(Policy { order, choice: Choice::default() }),
                None => choice_of(text).map(|choice| Policy { order: Order::Anywhere, choice }),
            },
        };
        policy.ok_or_else(wrong)
    }
}

impl TryFrom<String> for Policy {
    type Error = PolicyNameError;

    fn try_from(text: String) -> Result<Self, PolicyNameError> {
        text.parse()
    }
}

impl From<Policy> for String {
    fn from(policy: Policy) -> String {
        policy.to_string()
    }
}

fn order_of(name: &str) -> Option<Order> {
    match name {
        "local-first" => Some(Order::LocalFirst),
        "alternate" => Some(Order::Alternate),
        "anywhere" => Some(Order::Anywhere),
        _ => None,
    }
}

fn choice_of(name: &str) -> Option<Choice> {
    match name {
        "random" => Some(Choice::Random),
        "round-robin" => Some(Choice::RoundRobin),
        "least-loaded" => Some(Choice::LeastLoaded),
        "smart-idle" => Some(Choice::SmartIdle(Window::PerChoice)),
        "even" => Some(Choice::Even(Window::PerChoice)),
        _ => match name.split_once(':')? {
            ("smart-idle", length) => Some(Choice::SmartIdle(window_of(length)?)),
            ("even", length) => Some(Choice::Even(window_of(length)?)),
            _ => None,
        },
    }
}

fn window_of(length: &str) -> Option<Window> {
    let (digits, is_ms) = match length.strip_suffix("ms") {
        Some(digits) => (digits, true),
        None => (length.strip_suffix("us")?, false),
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let count = digits.parse().ok().filter(|count| plain && *count > 0)?;
    Some(if is_ms { Window::Ms(count) } else { Window::Us(count) })
}

impl fmt::Display for Policy {
    /// The shortest name that means this policy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            Order::LocalFirst => "local-first",
            Order::Alternate => "alternate",
            Order::Anywhere => return write!(f, "{}", self.choice),
        };
        match self.choice {
            Choice::Random => write!(f, "{order}"),
            choice => write!(f, "{order}+{choice}"),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Random => write!(f, "random"),
            Choice::RoundRobin => write!(f, "round-robin"),
            Choice::LeastLoaded => write!(f, "least-loaded"),
            Choice::SmartIdle(Window::PerChoice) => write!(f, "smart-idle"),
            Choice::SmartIdle(window) => write!(f, "smart-idle:{window}"),
            Choice::Even(Window::PerChoice) => write!(f, "even"),
            Choice::Even(window) => write!(f, "even:{window}"),
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Window::PerChoice => write!(f, "choice"),
            Window::Ms(ms) => write!(f, "{ms}ms"),
            Window::Us(us) => write!(f, "{us}us"),
        }
    }
}
