//! Topologies from trees of files, and the preloaded library against the kernel.

mod preload;
mod topology;
