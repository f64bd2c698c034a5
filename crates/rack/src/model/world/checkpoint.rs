//! A run as bytes, and bytes as a run that goes on as the first one would have.
//!
//! The bytes hold the configuration, so that another one's checkpoint is refused, and how many
//! records each source gave, so that sources are made anew and skip them.

use super::*;
use xxhash_rust::xxh3::xxh3_64;

/// First bytes of a checkpoint; the last one counts the form.
const MAGIC: [u8; 8] = *b"rackchk\x03";

/// A checkpoint that cannot be gone on from. Begin the run anew.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Not a checkpoint, not of this version, or damaged.
    #[error("this is no checkpoint of this version, or it is damaged: {0}")]
    Damaged(&'static str),
    /// Of a run with another configuration.
    #[error("the checkpoint is of another configuration")]
    OtherConfig,
}

#[derive(Serialize)]
struct Written<'a> {
    config: String,
    events: Vec<(Ps, Event)>,
    state: &'a State,
}

#[derive(Deserialize)]
struct Read {
    config: String,
    events: Vec<(Ps, Event)>,
    state: State,
}

fn text_of(config: &Config) -> String {
    serde_json::to_string(config).expect("a configuration has text keys and finite numbers")
}

impl World {
    /// The run as it is now. The run itself goes on unchanged.
    pub fn checkpoint(&mut self) -> Vec<u8> {
        // Events leave the queue in their order and go into a new one in the same order.
        let mut queue = Wheel::new();
        let mut events = Vec::with_capacity(self.queue.0.len());
        while let Some((at, source, event)) = self.queue.0.pop() {
            queue.push(at, source, event);
            events.push((at, event));
        }
        self.queue = Queue(queue);
        let written = Written { config: text_of(&self.config), events, state: &self.state };
        let body = postcard::to_stdvec(&written).expect("numbers and lists can be written");
        let mut bytes = MAGIC.to_vec();
        bytes.extend(xxh3_64(&body).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    /// The run that wrote `bytes`, with sources that are at their begin.
    pub fn resume(
        config: &Config,
        mut sources: Vec<Box<dyn Source>>,
        bytes: &[u8],
    ) -> Result<World, CheckpointError> {
        let damaged = CheckpointError::Damaged;
        let (magic, rest) = bytes.split_first_chunk::<8>().ok_or(damaged("too short"))?;
        let (sum, body) = rest.split_first_chunk::<8>().ok_or(damaged("too short"))?;
        if *magic != MAGIC {
            return Err(damaged("its first bytes"));
        }
        if xxh3_64(body) != u64::from_le_bytes(*sum) {
            return Err(damaged("its checksum"));
        }
        let read: Read = postcard::from_bytes(body).map_err(|_| damaged("its contents"))?;
        if read.config != text_of(config) || read.state.nodes.len() != sources.len() {
            return Err(CheckpointError::OtherConfig);
        }
        for (source, node) in sources.iter_mut().zip(&read.state.nodes) {
            source.skip(node.taken);
        }
        let mut queue = Queue(Wheel::new());
        read.events.into_iter().for_each(|(at, event)| queue.push(at, event));
        Ok(World {
            config: config.clone(),
            times: times(config),
            sources,
            queue,
            state: read.state,
            done: Vec::new(),
            taken: Vec::new(),
        })
    }
}
