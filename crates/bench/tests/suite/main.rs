//! Bench runners, their reports, and what they compare with, through the public interface.

mod baselines;
mod bench_verbs;
mod html;
mod runners;
