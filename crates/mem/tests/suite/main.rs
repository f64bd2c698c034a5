//! Regions and rings.

mod child;
mod region_files;
mod ring_corrupt;
mod ring_model;
mod ring_threads;
