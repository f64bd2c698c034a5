//! Names of policies, as the command line takes them.

use super::{Choice, Order, Policy, Window};
use std::fmt;
use std::str::FromStr;

/// A text that names no policy. Correct it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{name}` is no placement: write local-first, alternate, random, round-robin, least-loaded or \
     smart-idle, or two of them such as alternate+smart-idle; smart-idle:250ms counts in windows \
     of that length"
)]
pub struct PolicyNameError {
    /// The text.
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
        _ => {
            let digits = name.strip_prefix("smart-idle:")?.strip_suffix("ms")?;
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            let ms = digits.parse().ok().filter(|ms| plain && *ms > 0)?;
            Some(Choice::SmartIdle(Window::Ms(ms)))
        }
    }
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
            Choice::SmartIdle(Window::Ms(ms)) => write!(f, "smart-idle:{ms}ms"),
        }
    }
}
