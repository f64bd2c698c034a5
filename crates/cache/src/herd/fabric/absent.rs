//! Stands for `rdma` in a program that is built without the feature `verbs`: no device is ever
//! made.

use super::connections::{DeviceClient, Devices};
use crate::herd::geometry::Geometry;
use crate::herd::serving::Doorbell;
use rackpool_fabric::FabricError;
use rackpool_mem::window::Window;
use std::sync::Arc;

pub(in crate::herd) type RdmaListener = NoDevice;

/// A device, and a client's way by one.
pub(in crate::herd) enum NoDevice {}

impl NoDevice {
    pub fn open(_: &str, _: &Geometry) -> Result<NoDevice, FabricError> {
        Err(FabricError::NoVerbs)
    }

    pub fn source(&self, _: u32, _: Arc<Doorbell>) -> Result<(), FabricError> {
        match *self {}
    }
}

impl Devices for NoDevice {
    type Client = NoDevice;
    type Source = Option<()>;

    fn join(&mut self, _: u32, _: &Window, _: &[u8]) -> Option<(Vec<NoDevice>, Vec<u8>)> {
        match *self {}
    }

    fn take_made(&mut self) -> u64 {
        match *self {}
    }

    fn leave(&mut self, _: u32) {
        match *self {}
    }
}

impl DeviceClient for NoDevice {
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
