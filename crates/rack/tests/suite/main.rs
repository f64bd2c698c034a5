//! The rack model, its traces, and plans.

mod dram_checker;
mod dram_closed_forms;
mod dram_medium;
mod dram_random;
mod live;
mod plan;
mod plan_common;
mod plan_report;
mod rack_sweep;
mod trace_formats;
