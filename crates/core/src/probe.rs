//! Questions that the engines ask their world, so that a test can prove that its checks bite:
//! whether to leave a safeguard out ([`Mutation`]), whether to take a branch that is seldom taken
//! ([`Rare`]), and the news that a race was met ([`Race`]).
//!
//! The real world answers with the defaults below: no, no, and nothing. They are constants to the
//! compiler, so nothing of them is left in a program. A simulated world answers by seed. The same
//! engine code runs in both; no question is behind a `cfg`.
//!
//! A safeguard is left out by one `if` where it stands. A rare branch is one that the engine may
//! take at any time without harm, only with other costs or with an error that may be retried.

/// Declares an enum of names without data, with all of them in order and a name for reports.
macro_rules! names {
    ($(#[$about:meta])* $kind:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $kind { $($(#[$doc])* $variant,)* }

        impl $kind {
            /// All of them, in the order of their numbers (`self as usize`).
            pub const ALL: [$kind; [$($name),*].len()] = [$($kind::$variant),*];

            /// The name in reports and on command lines.
            pub const fn name(self) -> &'static str {
                match self { $($kind::$variant => $name,)* }
            }
        }
    };
}

names! {
    /// A safeguard that is left out. Each breaks a promise of the pool; a checker that lets one
    /// pass has a hole.
    Mutation {
        /// Reads do not compare the frame's generation: they may see another page's bytes.
        /// (Here readers announce and compare before the copy, decision 0001.)
        SkipEpochCheckRead = "skip-epoch-check-read",
        /// Writes and atomics do not compare the frame's generation: they may hit another page.
        SkipValidationWrite = "skip-validation-write",
        /// A process that takes frames away looks at the cells without a barrier before.
        OmitBarrier = "omit-barrier",
        /// Frames are used again while a cell announces them.
        ReuseBeforeDrained = "reuse-before-drained",
        /// Pages count as forgotten by the directory as soon as that was asked for.
        FreeBeforeCommit = "free-before-commit",
        /// One-sided writes count as done when they are posted.
        AcknowledgeBeforeCopy = "acknowledge-before-copy",
        /// A request slot serves the next request while an earlier one is under way: its end is
        /// taken for the end of the new one. In a ring: an entry that was not taken is written.
        ReuseSlotEarly = "reuse-slot-early",
        /// The buffer of a one-sided read goes back to its owner when the read is posted. In a
        /// ring: data blocks are written again before their message was finished.
        RecycleBufferEarly = "recycle-buffer-early",
        /// An atomic with an unknown outcome is posted again; a daemon serves a repeated request as
        /// a new one.
        RetryAppliedTwice = "retry-applied-twice",
        /// A word of the metadata is what its first copy says: damage counts.
        TrustOneCopy = "trust-one-copy",
        /// Attach drops a committed redo record.
        DropRedo = "drop-redo",
        /// One-sided operations are executed whatever their key.
        ExecuteRevokedKey = "execute-revoked-key",
        /// A page that leaves is not shut: its old home's users go on.
        LeavePageOpen = "leave-page-open",
        /// A page that leaves is copied while a cell announces its frame.
        CopyBeforeDrained = "copy-before-drained",
        /// A page leaves while a lock in it is held or awaited.
        MoveLockedPage = "move-locked-page",
        /// A page leaves while an allocation in it may still be taken back.
        MoveUntakenPage = "move-untaken-page",
        /// The old home takes a page back without asking the directory.
        TakeBackUnasked = "take-back-unasked",
        /// The old home frees a page's frame without asking the directory.
        GiveAwayUnasked = "give-away-unasked",
        /// The new home serves a page before the directory names it.
        HomeBeforeCommit = "home-before-commit",
        /// The new home forgets which objects of a slab page live.
        ForgetObjects = "forget-objects",
        /// Attach opens a page that was leaving without asking the directory.
        ForgetDeparture = "forget-departure",
        /// Attach serves a page that was arriving without asking the directory.
        ForgetArrival = "forget-arrival",
        /// … gives up the frame without asking the directory.
        DropArrival = "drop-arrival",
        /// A page that moves between the memories of a rack is not copied.
        SkipTierCopy = "skip-tier-copy",
        /// A run is freed, and the racks that have other pages of it are not told.
        ForgetApart = "forget-apart",
        /// A word is cleared, and no debt records what it named in another rack.
        ForgetDebt = "forget-debt",
        /// Attach takes a page of a run that begins in another rack for a leftover.
        DropStrayPage = "drop-stray-page",
        /// A restarted master gives a rack to another region's daemon at once.
        GrantWithoutLeaseWait = "grant-without-lease-wait",
        /// The old home of a page goes on to answer calls for its data.
        FetchUnchecked = "fetch-unchecked",
        /// A buffer that was exposed goes back to its owner while others may still write into it.
        KeepExposure = "keep-exposure",
        /// A daemon takes over the shard of a sibling that does not answer and is not dead.
        TakeOverLiving = "take-over-living",
        /// A lock is given back before what was buffered under it has gone home.
        UnlockBeforeFlush = "unlock-before-flush",
        /// What was buffered under a lock that is lost goes home all the same.
        KeepLostWrites = "keep-lost-writes",
        /// A client with a lock in a page goes on under it at the page's new home after a move.
        FollowLockedPage = "follow-locked-page",
        /// A half of the write buffer that is full is dropped.
        DropFullHalf = "drop-full-half",
        /// Reads do not look into the write buffer.
        ReadPastBuffer = "read-past-buffer",
        /// Copies stay in the page cache when their lock is given back.
        KeepCopiesAfterUnlock = "keep-copies-after-unlock",
        /// Copies are read without a proof that their lock is held.
        TrustCopies = "trust-copies",
        /// A range of lines is granted although another client has some of them.
        GrantMeetingRange = "grant-meeting-range",
        /// A grant gets the fencing token of the one before.
        ReuseToken = "reuse-token",
        /// Locks of a session go to others as soon as it has no connection.
        PassLocksAtOnce = "pass-locks-at-once",
        /// A session without a connection ends for a newcomer although it has locks.
        PassLocksToNewcomers = "pass-locks-to-newcomers",
        /// A client that comes back is not told which of its locks are lost.
        HideLostLocks = "hide-lost-locks",
        /// Attach forgets the locks of living sessions.
        DropLocksAtAttach = "drop-locks-at-attach",
        /// The words through which clients give locks back are emptied, and the locks stay.
        LoseReleases = "lose-releases",
        /// Locks of a session that is over stay.
        KeepLocksOfDead = "keep-locks-of-the-dead",
        /// Sessions of dead clients never end.
        NeverEndSessions = "never-end-sessions",
        /// Objects are handed out with what was in them.
        HandOutUnzeroed = "hand-out-unzeroed",
        /// Frames that are free keep their memory, with what is in it.
        SkipPunch = "skip-punch",
        /// Of the page ids of a run only the first counts as given out.
        GiveIdsAgain = "give-ids-again",
        /// Pages that are looked up ahead get the id of the page behind them.
        LookAheadOffByOne = "look-ahead-off-by-one",
        /// That the host has no memory is not noticed.
        IgnoreFullMemory = "ignore-full-memory",
        /// A client gets memory over its quota.
        IgnoreQuota = "ignore-quota",
        /// Any user of a host may use the memory that is served there.
        AdmitAnybody = "admit-anybody",
        /// Whatever lies at an address is freed, whatever was said of its size.
        FreeAnySize = "free-any-size",
        /// A client in the middle of a change does not say so.
        ChangeUnmarked = "change-unmarked",
        /// Audits are not told which clients are in the middle of a change.
        HideChanges = "hide-changes",
        /// Objects are lent and are not marked as used.
        LendUnmarked = "lend-unmarked",
        /// A client hands objects out of a loan that has ended.
        TakeUnlent = "take-unlent",
        /// … with what was in them.
        TakeUnzeroed = "take-unzeroed",
        /// What a dead client could still hand out stays lent.
        KeepLoans = "keep-loans",
        /// A free that waited in a slot is done, and waits there still.
        FreeQueuedTwice = "free-queued-twice",
        /// A page leaves while frees of its objects wait in slots.
        MoveQueuedFrees = "move-queued-frees",
        /// HERD's fast path: a request that comes again is done again.
        ApplyRepeatedRequest = "apply-repeated-request",
        /// A request that comes again is not answered again.
        DropRepeatedRequest = "drop-repeated-request",
        /// A thread stops to look at a client's slots, and the client is not told.
        StopWatchUntold = "stop-watch-untold",
        /// The key of a client's request slots stays valid when the client has ended.
        KeepFrameKey = "keep-frame-key",
        /// A client's request slots are another's before the threads have dropped the first.
        GiveFrameEarly = "give-frame-early",
        /// A client finds in its request slots what another left there.
        GiveFrameUncleared = "give-frame-uncleared",
        /// A one-sided atomic is a load and a store.
        AtomicsInTwoSteps = "atomics-in-two-steps",
        /// Accesses go on beyond the end of a page.
        CrossPageUnchecked = "cross-page-unchecked",
        /// What was posted to a connection that ended counts as done.
        FlushedIsDone = "flushed-is-done",
        /// The master answers without having stored what it says.
        AnswerUnstored = "answer-unstored",
        /// What is freed stays counted.
        KeepCounts = "keep-counts",
        /// The directory keeps pages that were freed.
        KeepFreedEntries = "keep-freed-entries",
        /// A rack leaves while the directory has pages of it.
        LeaveWithPages = "leave-with-pages",
        /// The master picks racks for new memory that are being drained, and their daemons give it.
        PickDrainingRack = "pick-draining-rack",
        /// A rack is given up while its daemon is alive.
        ForgetLivingRack = "forget-living-rack",
        /// A page is written while its replicas may be read.
        WriteUnderReplica = "write-under-replica",
        /// A silent keeper's lease counts as over at once.
        IgnoreReplicaLease = "ignore-replica-lease",
        /// Attach opens pages for writers although their replicas may be read.
        ForgetReplicasAtAttach = "forget-replicas-at-attach",
        /// Replicas are read whatever the time.
        ReadExpiredReplica = "read-expired-replica",
        /// Whether a replica is open is not looked at again after it was read.
        SkipReplicaRecheck = "skip-replica-recheck",
        /// A page is written while its replicas may be read, by a client that writes to all of
        /// them.
        WriteOpenReplica = "write-open-replica",
        /// A keeper says that it has closed a replica and has not.
        KeepReplicaOpen = "keep-replica-open",
        /// A work request that failed wakes no waiter.
        DropFailedCompletion = "drop-failed-completion",
        /// The directory takes a page's new home without comparing the old one.
        CommitUncompared = "commit-uncompared",
        /// What peers say of frames and objects is taken as it is.
        TrustPeers = "trust-peers",
        /// Calls to the master that were lost with a connection are not sent again.
        LoseCalls = "lose-calls",
        /// A silent peer counts as alive.
        NeverExpireLeases = "never-expire-leases",
        /// A handle that counts how it uses pages looks at the clock at each access.
        ClockEachAccess = "clock-each-access",
        /// A range is said to outlive a loss of power that was not made durable.
        AcknowledgeUnpersisted = "acknowledge-unpersisted",
        /// Single words of the metadata are not made durable.
        StoreUndurably = "store-undurably",
        /// A redo record's stores begin before it is durable.
        ApplyUndurableRedo = "apply-undurable-redo",
        /// A redo record is done before its stores are durable.
        FinishUndurableRedo = "finish-undurable-redo",
        /// An object that was used before is handed out before its zeroes are durable.
        ZeroUndurably = "zero-undurably",
        /// Sessions and locks of before a loss of power are taken for those of living processes.
        KeepDeadSessions = "keep-dead-sessions",
        /// Other hosts are not shown that a table word has changed.
        HideTableWord = "hide-table-word",
        /// A frame's table word is looked at in an old line.
        KeepTableLine = "keep-table-line",
        /// The daemon's host is not shown that a frame is announced.
        HideAnnouncement = "hide-announcement",
        /// … that an announcement is withdrawn.
        HideWithdrawal = "hide-withdrawal",
        /// The daemon looks at the cells of another host in old lines.
        KeepCellLine = "keep-cell-line",
        /// Pages are read from old lines.
        KeepPageLines = "keep-page-lines",
        /// What is written to a page is left in the host's cache.
        HidePageStores = "hide-page-stores",
        /// Parts of old lines of a page are written.
        WriteIntoOldLines = "write-into-old-lines",
        /// The consumer of a ring is not shown its entry.
        HideRingEntry = "hide-ring-entry",
        /// … the data that the entry points to.
        HideRingData = "hide-ring-data",
        /// The consumer of a ring looks at an entry in an old line.
        KeepRingEntry = "keep-ring-entry",
        /// … reads data from old lines.
        KeepRingData = "keep-ring-data",
        /// The producer of a ring is not shown what was taken or finished.
        HideRingRoom = "hide-ring-room",
        /// … looks at that in old lines.
        KeepRingRoom = "keep-ring-room",
        /// A ring that is made anew is not shown to its client.
        HideRingReset = "hide-ring-reset",
        /// … is looked at in old lines when it joins.
        KeepRingReset = "keep-ring-reset",
        /// The daemon's host is not shown which answers were taken.
        HideConsumed = "hide-consumed",
        /// The daemon looks at a client's words in old lines.
        KeepSlotWord = "keep-slot-word",
        /// What a dead process left in its host's cache stays there.
        LeaveDeadLines = "leave-dead-lines",
        /// What a dead daemon left in its host's cache stays there.
        LeaveLinesAtAttach = "leave-lines-at-attach",
        /// A processor of another host than the daemon's executes atomics and word stores.
        AtomicsApart = "atomics-apart",
    }
}

impl Mutation {
    /// Whether it shows only where the software keeps caches coherent.
    pub const fn is_of_coherence(self) -> bool {
        self as usize >= Mutation::HideTableWord as usize
    }

    /// Whether it shows only in racks with several memories.
    pub const fn is_of_tiers(self) -> bool {
        matches!(self, Mutation::SkipTierCopy)
    }

    /// Whether it shows only after a loss of power, in memory that outlives it.
    pub const fn is_of_power(self) -> bool {
        let (first, last) = (Mutation::AcknowledgeUnpersisted, Mutation::KeepDeadSessions);
        first as usize <= self as usize && self as usize <= last as usize
    }

    /// Whether a promise is broken that the simulator's checkers look at. The others cost speed, or
    /// are no part of what its clients do, or happen to them without a way out: tests of the
    /// engines notice them. Those of HERD's fast path are noticed by its own virtual world, in the
    /// tests of `rackpool-cache`.
    pub const fn is_simulated(self) -> bool {
        !self.is_of_power()
            && !matches!(
                self,
                Mutation::ReadExpiredReplica
                    | Mutation::SkipReplicaRecheck
                    | Mutation::IgnoreQuota
                    | Mutation::AdmitAnybody
                    | Mutation::DropFailedCompletion
                    | Mutation::CommitUncompared
                    | Mutation::TrustPeers
                    | Mutation::LoseCalls
                    | Mutation::NeverExpireLeases
                    | Mutation::ClockEachAccess
                    | Mutation::HideWithdrawal
                    | Mutation::LeaveLinesAtAttach
                    | Mutation::AtomicsApart
                    | Mutation::ApplyRepeatedRequest
                    | Mutation::DropRepeatedRequest
                    | Mutation::StopWatchUntold
                    | Mutation::KeepFrameKey
                    | Mutation::GiveFrameEarly
                    | Mutation::GiveFrameUncleared
            )
    }
}

names! {
    /// A branch that is seldom taken and may be taken at any time.
    Rare {
        /// Client: pages that were looked up ahead are displaced from the cache at once.
        TranslationConflict = "translation-conflict",
        /// Client: a warm access takes its translation for stale.
        TranslationStale = "translation-stale",
        /// Client: a search does not look ahead.
        LocateOnePage = "locate-one-page",
        /// Client: the own daemon's answer to a search is not believed; the master is asked.
        LocateAtMaster = "locate-at-master",
        /// Client: an allocation asks the master for a rack before its own.
        PickRackFirst = "pick-rack-first",
        /// Client: objects are asked for in batches, and frees of others' wait, from the first on.
        BatchAtOnce = "batch-at-once",
        /// Client: a doorbell carries one work request.
        BatchOfOne = "batch-of-one",
        /// Client: a connection takes no further work request until one has ended.
        SendQueueFull = "send-queue-full",
        /// Daemon: a slab page is made although its class has room.
        FreshSlabPage = "fresh-slab-page",
        /// Daemon: a class does not keep its empty slab page.
        EmptySlabReturned = "empty-slab-returned",
        /// Daemon: the leased page ids are at their end, if another range is leased.
        PageIdsExhausted = "page-ids-exhausted",
        /// Daemon: a step gives memory to one page.
        BackOnePage = "back-one-page",
        /// Daemon: a step punches one page.
        PunchOnePage = "punch-one-page",
        /// Daemon: a call commits one page.
        CommitOnePage = "commit-one-page",
        /// Daemon: a call removes one page.
        RemoveOnePage = "remove-one-page",
        /// Daemon: one call to the master is under way at a time.
        CallWindowFull = "call-window-full",
        /// Daemon: a call is sent to the master twice.
        CallRepeated = "call-repeated",
        /// Daemon: frames stay in quarantine until the next look.
        QuarantineKept = "quarantine-kept",
        /// Daemon: the quarantine is full: freeing whole pages is `Busy`.
        QuarantineFull = "quarantine-full",
        /// Daemon: the oldest closed remote session makes room for a new one.
        RemoteTableFull = "remote-table-full",
        /// Ring: there is no room for a message.
        RingFull = "ring-full",
        /// Target: a long copy is done word by word, each under an announcement of its own.
        TargetOneWord = "target-one-word",
        /// Master: a batch is full with its first command.
        MasterBatchFull = "master-batch-full",
        /// Master: a command is refused with `Busy`.
        MasterBusy = "master-busy",
    }
}

names! {
    /// A race that was met: two parties were where their order matters.
    Race {
        /// Client: a page's generation changed between its lookup and an access.
        GenerationChanged = "generation-changed",
        /// Client: the target refused a key that was resolved before.
        KeyRefused = "key-refused",
        /// Client: a write is posted again after its connection ended.
        WriteReposted = "write-reposted",
        /// Client: the outcome of an atomic is unknown.
        AtomicUnknown = "atomic-unknown",
        /// Client: the master knows a page of the own rack that the own daemon did not.
        CommittedNotHome = "committed-not-home",
        /// Client: a half of the write buffer was full.
        HalfFull = "half-full",
        /// Client: a read from home was shown what was not there yet.
        ReadOverlaid = "read-overlaid",
        /// Client: buffered writes were given up because their lock was lost.
        BufferedWritesLost = "buffered-writes-lost",
        /// Client: a page in which it had a lock has turned out to be elsewhere.
        LockedPageGone = "locked-page-gone",
        /// Client: a lock was asked for before a copy was read.
        ProofRenewed = "proof-renewed",
        /// Daemon: a cell announced a frame that was about to be punched.
        CellSeen = "cell-seen",
        /// Daemon: a repeated request was answered from its record.
        AnsweredFromRecord = "answered-from-record",
        /// Daemon: a request was repeated while it was under way.
        RepeatedUnderWay = "repeated-under-way",
        /// Daemon: a repeated free waited for the removal of its pages.
        RemovalJoined = "removal-joined",
        /// Daemon: an allocation was taken back because its answer was not taken.
        AnswerTakenBack = "answer-taken-back",
        /// Daemon: new pages were ready when no request waited for them any more.
        JobOutlivedRequest = "job-outlived-request",
        /// Daemon: an allocation waited for frames that were on their way back.
        WaitedForFrames = "waited-for-frames",
        /// Daemon: a client had given a lock back through a word of its slot.
        LockReleased = "lock-released",
        /// Daemon: an answer of the master came to a call that is not outstanding.
        AnswerUnasked = "answer-unasked",
        /// Attach: a committed redo record was finished.
        RedoFinished = "redo-finished",
        /// Attach: the later pages of a run followed the first.
        RunFinished = "run-finished",
        /// Daemon: a search waited for the end of a page's move.
        SearchParked = "search-parked",
        /// Daemon: a page that was leaving was taken back.
        PageTakenBack = "page-taken-back",
        /// Daemon: a page that was arriving had been taken back by its old home.
        ArrivalRefused = "arrival-refused",
        /// Daemon: something is to be freed here that was freed in another rack.
        OrphanFound = "orphan-found",
        /// Daemon: a move took too long.
        MoveTooSlow = "move-too-slow",
        /// Attach: a page was in a move.
        MoveSettledAtAttach = "move-settled-at-attach",
        /// Daemon: a request waited until replicas were closed or gone.
        ReplicaInTheWay = "replica-in-the-way",
        /// Daemon: the lease of a keeper of replicas ran out.
        KeeperSilent = "keeper-silent",
        /// Attach: a page had replicas.
        ReplicasFound = "replicas-found",
        /// Client: a replica was read.
        ReplicaRead = "replica-read",
        /// Client: a page and its replicas were written.
        ReplicaWritten = "replica-written",
        /// Attach: frames on their way were rolled back.
        FramesRolledBack = "frames-rolled-back",
        /// Master: a daemon with another region waits for the end of the old one's lease.
        JoinDeferred = "join-deferred",
        /// Master: a daemon was replaced while its connection was open.
        DaemonDeposed = "daemon-deposed",
    }
}

/// What the engines ask. The defaults are the real world's.
pub trait Probe {
    /// Whether a safeguard is left out. Only a test may say yes.
    #[inline(always)]
    fn mutated(&self, _mutation: Mutation) -> bool {
        false
    }

    /// Whether a rare branch is taken now.
    #[inline(always)]
    fn rare(&self, _rare: Rare) -> bool {
        false
    }

    #[inline(always)]
    fn met(&self, _race: Race) {}
}

/// The real world's, for engines that see no memory.
impl Probe for () {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_in_the_order_of_their_numbers() {
        let mut names = BTreeSet::new();
        for (index, one) in Mutation::ALL.into_iter().enumerate() {
            assert!(one as usize == index && names.insert(one.name()), "{one:?}");
        }
        for (index, one) in Rare::ALL.into_iter().enumerate() {
            assert!(one as usize == index && names.insert(one.name()), "{one:?}");
        }
        for (index, one) in Race::ALL.into_iter().enumerate() {
            assert!(one as usize == index && names.insert(one.name()), "{one:?}");
        }
        assert_eq!(Mutation::ALL.iter().filter(|one| one.is_simulated()).count(), 93);
    }

    #[test]
    fn the_real_world_leaves_nothing_out() {
        assert!(!Mutation::ALL.into_iter().any(|mutation| ().mutated(mutation)));
        assert!(!Rare::ALL.into_iter().any(|rare| ().rare(rare)));
    }
}
