//! Stands for `rdma` in a program that is built without the feature `verbs`: nothing of it is ever
//! made.

use super::connections::{DeviceClient, Devices};
use crate::herd::geometry::Geometry;
use crate::herd::serving::{self, Doorbell, IncomingRequest};
use rackpool_hw::fabric::FabricError;
use rackpool_hw::window::Window;
use std::sync::Arc;

pub(in crate::herd) enum RdmaListener {}

impl RdmaListener {
    pub fn open(_: &str, _: &Geometry) -> Result<RdmaListener, FabricError> {
        Err(FabricError::NoVerbs)
    }

    pub fn source(&self, _: u32, _: Arc<Doorbell>) -> Result<DatagramSource, FabricError> {
        match *self {}
    }
}

impl Devices for RdmaListener {
    type Client = RdmaClient;
    type Source = Option<DatagramSource>;

    fn join(&mut self, _: u32, _: &Window, _: &[u8]) -> Option<(Vec<RdmaClient>, Vec<u8>)> {
        match *self {}
    }

    fn take_made(&mut self) -> u64 {
        match *self {}
    }

    fn leave(&mut self, _: u32) {
        match *self {}
    }
}

pub(in crate::herd) enum RdmaClient {}

impl DeviceClient for RdmaClient {
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

pub(in crate::herd) enum DatagramSource {}

impl serving::RequestSource for DatagramSource {
    fn poll(&mut self, _: &mut dyn FnMut(&IncomingRequest<'_>)) {
        match *self {}
    }

    fn arm(&mut self) {
        match *self {}
    }
}
