//! Commands as they go over the command bus: what the checker sees.

use super::Cycle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// Opens `row` of the bank.
    Activate,
    /// Reads a line of the open row.
    Read,
    /// Reads a line of the open row, which then closes.
    ReadAuto,
    /// Writes a line of the open row.
    Write,
    /// Writes a line of the open row, which then closes.
    WriteAuto,
    Precharge,
    /// Closes all rows of the rank.
    PrechargeAll,
    Refresh,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Its first cycle on the command bus.
    pub at: Cycle,
    pub kind: CommandKind,
    /// Rank, group and bank in one: `(rank * groups + group) * banks + bank`; for a whole rank its
    /// first bank.
    pub bank: u32,
    /// The row that is opened, or in which a line is accessed; 0 for others.
    pub row: u32,
    /// The line of the row that is accessed; 0 for others.
    pub column: u32,
}
