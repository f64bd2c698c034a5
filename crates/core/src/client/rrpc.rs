//! Calls for data: the client's end of RRPC. A call goes to the daemon of a page's home, which
//! sends the data, writes it into the caller's buffer, or says where it is; the answer tells the
//! page's place, which is cached, so later accesses are one-sided.
//!
//! [`Rpc`] is one call: it finds the home as any request does. [`Calls`] are many, and go to where
//! the pages probably are, all calls to one rack under one doorbell; a call that does not find its
//! page there becomes an [`Rpc`]. The guess: page ids are leased in ranges, so if other pages of a
//! range are in a rack, the page was made in that rack. A right guess saves the questions to the
//! own daemon and to the master; a wrong one costs a call.
//!
//! Ownership rule: an exposed buffer is concealed before its operation ends, and data counts as
//! written only as far as the fabric says that it has come. Source: Rcmp §5.5; decision 0028.

use super::alloc::Home;
use super::locate::unexpected;
use super::{Access, Client, Context, Io, LinkId, Operation, Reach};
use crate::addr::{GAddr, PageId};
use crate::constants::PAGE_ID_LEASE;
use crate::error::{Error, Result};
use crate::rrpc::{Bytes, CALLS_MAX, Carried, Fetch, FetchExtent, Fetched, INLINE_BYTES_MAX};
use crate::seam::{Exposure, Mem, Mutation};
use crate::wire::{PageHome, Reply, Request};

/// Ranges of page ids with a remembered rack.
const RANGES: usize = 64;

/// Which link leads to the rack of a range of page ids, as far as was seen.
#[derive(Debug)]
pub(super) struct Ranges([Option<(u64, LinkId)>; RANGES]);

impl Default for Ranges {
    fn default() -> Self {
        Self([None; RANGES])
    }
}

impl Ranges {
    fn of(page: PageId) -> (u64, usize) {
        let range = page.0 / PAGE_ID_LEASE;
        (range, (range % RANGES as u64) as usize)
    }

    pub(super) fn note(&mut self, page: PageId, link: LinkId) {
        let (range, index) = Self::of(page);
        self.0[index] = Some((range, link));
    }

    fn get(&self, page: PageId) -> Option<LinkId> {
        let (range, index) = Self::of(page);
        self.0[index].filter(|(of, _)| *of == range).map(|(_, link)| link)
    }
}

impl<M: Mem> Client<M> {
    /// The link to the rack where a page probably is, if that is reached over the fabric and the
    /// page's place is not known.
    pub fn guess(&self, addr: GAddr) -> Option<LinkId> {
        let page = self.geometry().page(addr);
        if self.translation(page).is_some() {
            return None;
        }
        self.ranges.get(page).filter(|link| matches!(self.reach(*link), Reach::OneSided(_)))
    }
}

/// How a call fetches data of known length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchMode {
    /// The answer carries it: up to 8 KiB.
    Inline,
    /// The answer says where it is; then it is read one-sided.
    OneSidedRead,
    /// The home writes it into the caller's buffer.
    WriteBack,
}

impl FetchMode {
    /// The call for so many bytes.
    pub fn of(self, bytes: u64) -> What {
        match self {
            FetchMode::Inline => What::Fetch(FetchExtent::Bytes(bytes), INLINE_BYTES_MAX),
            FetchMode::OneSidedRead => What::Fetch(FetchExtent::Bytes(bytes), 0),
            FetchMode::WriteBack => What::FetchInto(bytes, 0),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Fetches; up to this length the answer carries the data, bytes.
    Fetch(FetchExtent, u32),
    /// Fetches so many bytes into the caller's buffer, piece 0, which is as long or longer; up to
    /// the second length the answer carries them.
    FetchInto(u64, u32),
    /// Writes, at most [`INLINE_BYTES_MAX`] bytes.
    Store(Bytes),
}

/// What a call has brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Brought {
    /// Data, as the answer says. `Written` means that all of it is in the caller's buffer.
    Fetched(Fetched),
    Stored,
}

impl Brought {
    /// # Errors
    /// `protocol` if it is no answer to a fetch.
    pub fn fetched(self) -> Result<Fetched> {
        match self {
            Brought::Fetched(fetched) => Ok(fetched),
            Brought::Stored => Err(Error::Protocol {
                peer: "daemon".into(),
                reason: "it stored what was to be fetched".into(),
            }),
        }
    }
}

#[derive(Debug)]
pub struct Rpc {
    addr: GAddr,
    what: What,
    /// The link that is asked first, before the home is looked up.
    guess: Option<LinkId>,
}

/// An answer, with the bytes that have come into the caller's buffer by then.
struct Answer {
    link: LinkId,
    reply: Result<Reply>,
    come_bytes: u64,
}

impl Rpc {
    pub fn new<M: Mem>(client: &Client<M>, addr: GAddr, what: What) -> Self {
        Self { addr, what, guess: client.guess(addr) }
    }

    /// As [`Rpc::new`], by the sure way only: after a guess that was wrong.
    pub fn without_guess(addr: GAddr, what: What) -> Self {
        Self { addr, what, guess: None }
    }

    /// The request, with an exposure of the caller's buffer if it needs one.
    fn request(&self, link: LinkId, io: &mut impl Io) -> (Request, Option<Exposure>) {
        let addr = self.addr;
        let (extent, inline_bytes_max, into) = match &self.what {
            What::Store(data) => return (Request::Store { addr, data: data.clone() }, None),
            What::Fetch(extent, inline_bytes_max) => (*extent, *inline_bytes_max, None),
            What::FetchInto(bytes, inline_bytes_max) => {
                let is_long = *bytes > u64::from(*inline_bytes_max);
                let into = if is_long { io.expose(link, 0, 0, *bytes) } else { None };
                (FetchExtent::Bytes(*bytes), *inline_bytes_max, into)
            }
        };
        (Request::Fetch(Fetch { addr, extent, inline_bytes_max, into }), into)
    }

    /// Asks a daemon; the buffer is exposed no longer than that.
    async fn ask<M: Mem>(
        &self,
        cx: &mut impl Context<M>,
        link: LinkId,
        is_guess: bool,
    ) -> Result<Answer> {
        let (request, exposed) = self.request(link, &mut cx.access()?.1);
        let reply = if is_guess {
            let replies = cx.batch(link, vec![request]).await;
            let first = |mut replies: Vec<Result<Reply>>| replies.swap_remove(0);
            replies.map(first)
        } else {
            Ok(cx.daemon(link, request).await)
        };
        let lost = match &reply {
            Ok(Err(_)) if !is_guess => Ok(()),
            _ => cx.check(),
        };
        let (client, mut io) = cx.parts();
        let is_over = lost.is_err() || !matches!(reply, Ok(Ok(_)));
        let come_bytes = match exposed {
            Some(_) if is_over && client.mutated(Mutation::KeepExposure) => 0,
            Some(exposure) => io.conceal(link, exposure),
            None => 0,
        };
        lost?;
        Ok(Answer { link, reply: reply?, come_bytes })
    }

    /// The result of an answer that fits.
    fn take<M: Mem>(
        &self,
        client: &mut Client<M>,
        link: LinkId,
        reply: Reply,
        come_bytes: u64,
    ) -> Result<Brought> {
        match (reply, &self.what) {
            (Reply::Stored(home), What::Store(_)) => {
                install(client, link, self.addr, home)?;
                client.note_remote(self.addr, Access::Write);
                Ok(Brought::Stored)
            }
            (Reply::Fetched(mut fetched), What::Fetch(..) | What::FetchInto(..)) => {
                let (extent, inline_bytes_max) = match &self.what {
                    What::FetchInto(bytes, max) => (FetchExtent::Bytes(*bytes), *max),
                    What::Fetch(extent, max) => (*extent, *max),
                    What::Store(_) => unreachable!("matched above"),
                };
                check_fetched(&fetched, extent, inline_bytes_max)?;
                install(client, link, self.addr, fetched.home)?;
                if fetched.carried == Carried::Written && come_bytes < fetched.bytes {
                    // It was written through a connection that has ended since.
                    fetched.carried = Carried::Not;
                }
                note_fetched(client, self.addr, &fetched);
                Ok(Brought::Fetched(fetched))
            }
            _ => Err(unexpected("daemon", "a call for data")),
        }
    }
}

/// The answer carries what was asked for, and no more.
fn check_fetched(fetched: &Fetched, extent: FetchExtent, inline_bytes_max: u32) -> Result<()> {
    let length_fits = match extent {
        FetchExtent::Bytes(bytes) => fetched.bytes == bytes,
        FetchExtent::Object => true,
    };
    let data_fits = match &fetched.carried {
        Carried::Inline(data) => {
            data.0.len() as u64 == fetched.bytes && data.0.len() as u64 <= inline_bytes_max.into()
        }
        Carried::Written => extent != FetchExtent::Object,
        Carried::Not => true,
    };
    if length_fits && data_fits { Ok(()) } else { Err(unexpected("daemon", "a call for data")) }
}

fn install<M: Mem>(
    client: &mut Client<M>,
    link: LinkId,
    addr: GAddr,
    home: PageHome,
) -> Result<()> {
    if home.page != client.geometry().page(addr) || home.rack != client.rack_of(link) {
        return Err(unexpected("daemon", "the page of a call"));
    }
    client.install(link, &[home])
}

/// Counts the access; data that did not come will be read from the place, which counts.
fn note_fetched<M: Mem>(client: &Client<M>, addr: GAddr, fetched: &Fetched) {
    if fetched.carried != Carried::Not {
        client.note_remote(addr, Access::Read);
    }
}

impl<M: Mem> Operation<M> for Rpc {
    type Output = Brought;

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<Brought> {
        cx.end_with_locks();
        if let Some(link) = self.guess {
            let Answer { link, reply, come_bytes } = self.ask(cx, link, true).await?;
            // Whatever the refusal, the sure way says it again, or does it.
            if let Ok(reply) = reply {
                return self.take(cx.client(), link, reply, come_bytes);
            }
        }
        let mut home = Home::of(self.addr);
        loop {
            let link = home.find(cx).await?;
            let Answer { link, reply, come_bytes } = self.ask(cx, link, false).await?;
            if let Some(reply) = home.judge(cx.client(), reply)? {
                return self.take(cx.client(), link, reply, come_bytes);
            }
        }
    }
}

#[derive(Debug)]
pub struct Calls<'a> {
    addrs: &'a [GAddr],
    extent: FetchExtent,
    inline_bytes_max: u32,
    /// Which of them are not asked yet, the next one last.
    left: Vec<usize>,
    said: Vec<Option<Fetched>>,
}

impl<'a> Calls<'a> {
    /// Fetches what is at each address; up to `inline_bytes_max` bytes the answer carries it.
    pub fn new(addrs: &'a [GAddr], extent: FetchExtent, inline_bytes_max: u32) -> Self {
        let left = (0..addrs.len()).rev().collect();
        let inline_bytes_max = inline_bytes_max.min(INLINE_BYTES_MAX);
        Self { addrs, extent, inline_bytes_max, left, said: vec![None; addrs.len()] }
    }

    /// The calls of the next doorbell, to one rack.
    fn next<M: Mem>(&mut self, client: &Client<M>) -> Option<(LinkId, Vec<usize>)> {
        let (mut link, mut indexes) = (None, Vec::new());
        let mut others = Vec::new();
        // Answers of one doorbell have to fit into the queue of the way back.
        while indexes.len() < CALLS_MAX {
            let Some(index) = self.left.pop() else { break };
            match client.guess(self.addrs[index]) {
                None => {}
                Some(guess) if *link.get_or_insert(guess) == guess => indexes.push(index),
                Some(_) => others.push(index),
            }
        }
        self.left.extend(others.into_iter().rev());
        link.map(|link| (link, indexes))
    }
}

impl<M: Mem> Operation<M> for Calls<'_> {
    /// The answers; `None` for what has to be fetched in another way, because its rack is not
    /// known or does not have it.
    type Output = Vec<Option<Fetched>>;

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<Self::Output> {
        cx.end_with_locks();
        let (extent, inline_bytes_max) = (self.extent, self.inline_bytes_max);
        while let Some((link, indexes)) = self.next(cx.client()) {
            let request = |index: &usize| {
                let addr = self.addrs[*index];
                Request::Fetch(Fetch { addr, extent, inline_bytes_max, into: None })
            };
            let replies = cx.batch(link, indexes.iter().map(request).collect()).await?;
            for (index, reply) in indexes.into_iter().zip(replies) {
                let (addr, client) = (self.addrs[index], cx.client());
                match reply {
                    Ok(Reply::Fetched(fetched)) => {
                        check_fetched(&fetched, extent, inline_bytes_max)?;
                        install(client, link, addr, fetched.home)?;
                        note_fetched(client, addr, &fetched);
                        self.said[index] = Some(fetched);
                    }
                    Ok(_) => return Err(unexpected("daemon", "a call for data")),
                    Err(_) => {}
                }
            }
        }
        Ok(std::mem::take(&mut self.said))
    }
}
