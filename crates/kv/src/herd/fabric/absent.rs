//! Stands for `rdma` in a program that is built without the feature `verbs`: nothing of it is ever
//! made.

use super::keeper::{DeviceSeat, Devices};
use crate::herd::geometry::Geometry;
use crate::herd::serving::{self, Bell, Request};
use rackpool_hw::fabric::FabricError;
use rackpool_hw::window::Window;
use std::sync::Arc;

pub(in crate::herd) enum Door {}

impl Door {
    pub fn open(_: &str, _: &Geometry) -> Result<Door, FabricError> {
        Err(FabricError::NoVerbs)
    }

    pub fn intake(&self, _: u32, _: Arc<Bell>) -> Result<Intake, FabricError> {
        match *self {}
    }
}

impl Devices for Door {
    type Seat = Seat;
    type Intake = Option<Intake>;

    fn join(&mut self, _: u32, _: &Window, _: &[u8]) -> Option<(Vec<Seat>, Vec<u8>)> {
        match *self {}
    }

    fn take_made(&mut self) -> u64 {
        match *self {}
    }

    fn leave(&mut self, _: u32) {
        match *self {}
    }
}

pub(in crate::herd) enum Seat {}

impl DeviceSeat for Seat {
    fn is_heard(&self) -> bool {
        match *self {}
    }

    fn reply(&mut self, _: &[u8]) -> bool {
        match *self {}
    }

    fn ring(&self) {
        match *self {}
    }
}

pub(in crate::herd) enum Intake {}

impl serving::Intake for Intake {
    fn poll(&mut self, _: &mut dyn FnMut(&Request<'_>)) {
        match *self {}
    }

    fn arm(&mut self) {
        match *self {}
    }
}
