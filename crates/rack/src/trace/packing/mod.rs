//! The trace of virtual machines that packing is studied with: Azure's of 2020 (Protean).
//!
//! Two tables, exported as CSV with a line of names, columns in any order, others ignored:
//! `vm(vmId, tenantId, vmTypeId, priority, starttime, endtime)` and
//! `vmType(vmTypeId, machineId, core, memory, hdd, ssd, nic)`. Times are days, resources fractions
//! of a machine of that kind. The data set comes as SQLite; no reader of that is without a library
//! in C, so it is exported first: `sqlite3 -header -csv FILE 'select * from vm' > vm.csv`.
//!
//! Virtual machines are a stream; types are few and kept. Source: 05-racksim §5.

mod fixture;
mod table;

pub use fixture::{Fixture, Stranding, fixture};

use super::error::{Cause, TraceError};
use super::input::Input;
use std::fs::File;
use std::path::Path;
use table::Table;

/// Starts before this are no times: 3414 rows of the data set say -7157 (its issue 14), some 20
/// years before it.
pub const START_DAYS_MIN: f64 = -3650.0;
const TYPES_MAX: usize = 1 << 20;

/// What a type of virtual machine takes of a kind of machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VmType {
    pub vm_type: u32,
    /// The kind of machine. A type has a row for each kind that it runs on.
    pub machine: u32,
    /// Processors, as a part of the machine's.
    pub core: f64,
    /// Memory, as a part of the machine's.
    pub memory: f64,
    /// Disks; 0 if the table has nothing there, as with those that follow.
    pub hdd: f64,
    pub ssd: f64,
    pub nic: f64,
}

/// A virtual machine that was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vm {
    pub id: u64,
    pub tenant: u64,
    pub vm_type: u32,
    /// How important it is; 0 is high, as the data set has it.
    pub priority: u32,
    /// When it began, in days; less than 0 if that was before the trace. `None` if it was before
    /// at an unknown time (see [`START_DAYS_MIN`]).
    pub start_days: Option<f64>,
    /// When it ended, in days; `None` if that was after the trace.
    pub end_days: Option<f64>,
}

/// What was odd in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    /// Starts that are no times; these rows are given with `start_days: None`.
    pub unknown_starts: u64,
    /// Ends before starts; these rows are left out.
    pub reversed: u64,
}

pub struct Packing {
    types: Vec<VmType>,
    vms: Table<6>,
    quirks: Quirks,
}

const VM_COLUMNS: [&str; 6] = ["vmId", "tenantId", "vmTypeId", "priority", "starttime", "endtime"];
const TYPE_COLUMNS: [&str; 7] = ["vmTypeId", "machineId", "core", "memory", "hdd", "ssd", "nic"];

impl Packing {
    /// Opens the tables of virtual machines and of types, which may be compressed.
    ///
    /// # Errors
    /// The system's, or what is wrong with the types or the names of columns.
    pub fn open(vms: &Path, types: &Path) -> Result<Packing, TraceError> {
        let open = |path: &Path| {
            let name = path.display().to_string();
            let file = File::open(path).map_err(|error| Cause::Io(error).at(&name, 0))?;
            let input = Input::new(Box::new(file)).map_err(|cause| cause.at(&name, 0))?;
            Ok((name, input))
        };
        let ((vms, vm_input), (types, type_input)) = (open(vms)?, open(types)?);
        Packing::read(Table::new(vms, vm_input)?, Table::new(types, type_input)?)
    }

    /// Reads tables that are in memory.
    ///
    /// # Errors
    /// What is wrong with the types or the names of columns.
    pub fn read_bytes(vms: Vec<u8>, types: Vec<u8>) -> Result<Packing, TraceError> {
        let input = |name: &str, bytes| {
            let input = Input::new(Box::new(std::io::Cursor::new(bytes)));
            input.map_err(|cause| cause.at(name, 0))
        };
        let (vms, types) = (input("vm", vms)?, input("vmType", types)?);
        Packing::read(Table::new("vm".into(), vms)?, Table::new("vmType".into(), types)?)
    }

    fn read(mut vms: Table<6>, mut types: Table<7>) -> Result<Packing, TraceError> {
        vms.head(VM_COLUMNS)?;
        types.head(TYPE_COLUMNS)?;
        let mut all = Vec::new();
        while let Some(row) = types.row(vm_type)? {
            if all.len() == TYPES_MAX {
                let (value, max) = (TYPES_MAX as u64 + 1, TYPES_MAX as u64);
                return Err(types.fails(Cause::Oversized {
                    what: "the number of types",
                    value,
                    max,
                }));
            }
            all.push(row);
        }
        all.sort_by_key(|row| (row.vm_type, row.machine));
        Ok(Packing { types: all, vms, quirks: Quirks::default() })
    }

    /// All types, by number and kind of machine.
    pub fn types(&self) -> &[VmType] {
        &self.types
    }

    /// What a type takes, of each kind of machine that it runs on.
    pub fn of_type(&self, vm_type: u32) -> &[VmType] {
        let from = self.types.partition_point(|row| row.vm_type < vm_type);
        let count = self.types[from..].partition_point(|row| row.vm_type == vm_type);
        &self.types[from..from + count]
    }

    /// The next virtual machine, in the order of the table.
    ///
    /// # Errors
    /// What is wrong with the row; also a type that the other table does not have.
    pub fn next_vm(&mut self) -> Result<Option<Vm>, TraceError> {
        loop {
            let Some(mut vm) = self.vms.row(vm)? else { return Ok(None) };
            if self.of_type(vm.vm_type).is_empty() {
                let what = format!("there is no vmTypeId {}", vm.vm_type);
                return Err(self.vms.fails(Cause::Malformed(what)));
            }
            if vm.start_days.is_some_and(|start| start < START_DAYS_MIN) {
                self.quirks.unknown_starts += 1;
                vm.start_days = None;
            }
            if vm.end_days < vm.start_days && vm.end_days.is_some() {
                self.quirks.reversed += 1;
                continue;
            }
            return Ok(Some(vm));
        }
    }

    /// What was odd in the rows that were read.
    pub fn quirks(&self) -> Quirks {
        self.quirks
    }
}

fn vm(words: [&str; 6]) -> Option<Vm> {
    Some(Vm {
        id: words[0].parse().ok()?,
        tenant: words[1].parse().ok()?,
        vm_type: words[2].parse().ok()?,
        priority: words[3].parse().ok()?,
        start_days: Some(days(words[4])?),
        end_days: if empty(words[5]) { None } else { Some(days(words[5])?) },
    })
}

fn vm_type(words: [&str; 7]) -> Option<VmType> {
    let part = |word: &str| {
        let part: f64 = if empty(word) { 0.0 } else { word.parse().ok()? };
        (0.0..=1.0).contains(&part).then_some(part)
    };
    Some(VmType {
        vm_type: words[0].parse().ok()?,
        machine: words[1].parse().ok()?,
        core: part(words[2])?,
        memory: part(words[3])?,
        hdd: part(words[4])?,
        ssd: part(words[5])?,
        nic: part(words[6])?,
    })
}

fn days(word: &str) -> Option<f64> {
    word.parse().ok().filter(|days: &f64| days.is_finite() && days.abs() < 1e6)
}

fn empty(word: &str) -> bool {
    word.is_empty() || word.eq_ignore_ascii_case("null")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: &str = "id,vmTypeId,machineId,core,memory,hdd,ssd,nic\n\
                         0,7,1,0.25,0.5,,0.1,0.05\n1,7,0,0.5,0.5,0,0,0\n2,3,0,1,1,,NULL,1\n";

    fn packing(vms: &str) -> Packing {
        let vms = format!("vmId,tenantId,vmTypeId,priority,starttime,endtime\n{vms}");
        Packing::read_bytes(vms.into_bytes(), TYPES.into()).unwrap()
    }

    #[test]
    fn both_tables_are_read_and_odd_rows_are_counted() {
        let mut packing = packing(
            "1,9,7,0,-0.5,3.25\n2,9,3,1,-7157,1\n3,9,3,1,2,\n4,9,3,1,2,1\n5,9,3,1,0,NULL\n",
        );
        assert_eq!(packing.types().len(), 3);
        let machines: Vec<u32> = packing.of_type(7).iter().map(|row| row.machine).collect();
        assert_eq!((machines, packing.of_type(4).len()), (vec![0, 1], 0));
        let mut vms = Vec::new();
        while let Some(vm) = packing.next_vm().unwrap() {
            vms.push((vm.id, vm.start_days, vm.end_days));
        }
        let expected = [
            (1, Some(-0.5), Some(3.25)),
            (2, None, Some(1.0)),
            (3, Some(2.0), None),
            (5, Some(0.0), None),
        ];
        assert_eq!(vms, expected);
        assert_eq!(packing.quirks(), Quirks { unknown_starts: 1, reversed: 1 });
    }

    #[test]
    fn tables_are_read_as_spreadsheets_write_them() {
        let vms = "\u{feff}\"vmId\",\"tenantId\",note,vmTypeId,priority,starttime,endtime\r\n\r\n\
                   1,9,\"a, \"\"b\"\"\",\"7\",0, -0.5 ,\"3.25\"\r\n2,9,,3,1,2,\"\"";
        let mut packing = Packing::read_bytes(vms.into(), TYPES.into()).unwrap();
        let mut next = || packing.next_vm().unwrap().map(|vm| (vm.id, vm.vm_type, vm.end_days));
        assert_eq!([next(), next(), next()], [Some((1, 7, Some(3.25))), Some((2, 3, None)), None]);
    }

    #[test]
    fn what_is_wrong_is_said_with_table_and_row() {
        for (vms, expected) in [
            ("1,9,7,0,0,1\n2,9,8,0,0,1\n", "vm, record 3: malformed: there is no vmTypeId 8"),
            ("1,9,7,0,x,1\n", "vm, record 2: malformed"),
            ("1,9,7,0,0\n", "vm, record 2: malformed"),
            ("1,9,7,0,0,1\n2,9,7,0,", "vm, record 3: truncated: the last line has no line end"),
            ("1,9,7,0,inf,1\n", "vm, record 2: malformed"),
        ] {
            let mut packing = packing(vms);
            let error = loop {
                match packing.next_vm() {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("{vms} was read"),
                    Err(error) => break error.to_string(),
                }
            };
            assert!(error.starts_with(expected), "{error}");
        }
        let no_column = Packing::read_bytes(b"vmId\n".to_vec(), TYPES.into());
        let error = no_column.err().unwrap().to_string();
        assert!(error.contains("no column tenantId"), "{error}");
        let types = TYPES.replace("0.25", "2.5");
        let error = Packing::read_bytes(VM_COLUMNS.join(",").into_bytes(), types.into());
        assert!(error.is_err());
    }
}
