//! The hash table on the pool.

mod audit;
mod common;
mod concurrent;
mod pool;
mod table;
