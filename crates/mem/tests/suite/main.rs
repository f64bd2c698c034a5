//! Regions, rings and memory nodes.

mod child;
mod numa;
mod region_files;
mod ring_corrupt;
mod ring_model;
mod ring_threads;
