//! Memories of unlike speed in one machine: how fast each one is, and by which
//! weights pages are dealt out to them ([`weights`], [`choice`]). Called by the command line.

pub mod choice;
pub mod topology;
pub mod weights;
