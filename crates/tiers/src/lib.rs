//! Memories of unlike speed in one machine: how fast each one is ([`measure`]), by which weights
//! pages are dealt out to them ([`weights`]), and which of them a program should use ([`choice`]).
//! Called by the command line.

pub mod choice;
pub mod measure;
pub mod weights;
