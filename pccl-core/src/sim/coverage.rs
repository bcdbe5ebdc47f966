//! Which of the situations that matter a campaign has been in, and how often.

macro_rules! covers {
    ($($(#[$doc:meta])* $name:ident = $words:literal,)*) => {
        /// A situation worth counting.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Cover {
            $(#[doc = $words] $name,)*
        }

        impl Cover {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// In words.
            pub fn words(self) -> &'static str {
                match self { $(Self::$name => $words,)* }
            }
        }
    };
}

covers! {
    Commit = "an operation committed",
    Abort = "an operation aborted",
    SyncCommit = "a synchronisation committed",
    SyncFetch = "a member fetched state",
    SyncSources = "state came from several members",
    SyncLie = "a seeder lied",
    SyncStall = "a seeder stalled, and others were asked",
    SyncTwoFetch = "two members fetched state at the same time",
    SyncTorn = "a fetch broke off half-way",
    SyncTornFetch = "a member whose fetch had broken off fetched state",
    JoinDuringFetch = "a newcomer registered while a member fetched state",
    RoundCompleted = "a round completed",
    QueryCompleted = "a query completed",
    VoteFailed = "a try at a unanimous call failed",
    NewcomerAdmitted = "a newcomer was admitted to a run with members",
    Rejoined = "an evicted or departed peer joined again",
    Crash = "a process was killed",
    CrashRestart = "a killed process started again as a newcomer",
    PowerCut = "a machine went away without a word",
    ControlBroken = "a control connection broke",
    LaneBroken = "a lane broke",
    AllLanesBroken = "all lanes of a peer broke",
    HalfOpen = "one end of a broken connection was not told",
    HalfOpenTimedOut = "a kernel gave up on unacknowledged bytes",
    CutOneWay = "a path was cut in one direction",
    CutBothWays = "a path was cut in both directions",
    Partition = "the hosts were parted in two",
    Isolated = "a host was cut off from all",
    StallPeer = "a peer was stopped for a while",
    StallMaster = "the master was stopped for a while",
    StallPeerLong = "a peer was stopped for longer than the peer time-out",
    StallMasterLong = "the master was stopped for longer than the peer time-out",
    StallMasterBeyondLimit = "the master was away for longer than the master limit",
    Suspend = "a machine slept, packets and all",
    ClockJump = "a clock jumped forward",
    BitFlip = "a bit flipped on a lane",
    WrongResult = "a member computed a wrong result",
    OperatorEvict = "an operator evicted a member",
    NextLife = "a second master was a later life of the first",
    SecondMaster = "a second master came up",
    TwoIncarnations = "a peer met another master than the one it belonged to",
    MasterRestart = "the master was killed and a fresh one took its place",
    DialRefused = "a dial was refused",
    DialIntoSilence = "a dial met silence",
    UndialablePeer = "a peer that cannot be dialled took part",
    BrokenEdge = "two members had no path between them",
    CrashAfterLastDone = "a member was killed between the last DONE and the verdict",
    CrashWithOp = "a member was killed with an operation in flight",
    CrashWithVote = "a member was killed with a vote out",
    NewcomerCrash = "a newcomer was killed before its admission returned",
    EpochChangeInFlight = "the group changed while an operation was in flight",
    LossAllDone = "a member was lost while all survivors were done",
    ReattachUndecided = "a member came back with an undecided operation",
    ReattachVote = "a member came back with a vote out",
    VerdictResent = "a verdict was sent to a member again after it came back",
    CompletedResent = "a round's result reached a member on a later connection than its vote",
    LaneDied = "a dead lane's operation was given up",
    LaneDeathMidFrame = "a lane died in the middle of a frame",
    OpenUnderStaleEpoch = "an OPEN reached the master under an epoch that had passed",
    HeldOpen = "an OPEN for a use not yet called reached a member",
    WithdrawnVote = "a vote was taken back",
    CancelledOp = "an operation was cancelled or timed out",
    CommitDespiteCancel = "an operation committed after its abort had been asked for",
    Contradiction = "contradictory calls were told",
    Mismatch = "differing descriptors were told",
    Diverged = "differing results were told",
    FastLoss = "a killed member was lost well before the peer time-out",
    Left = "a member left in good order",
    LeftWithOps = "a member left with operations open",
    EvictedAlive = "a live member was counted as lost and told so",
    MasterLimitPassed = "a peer gave the run up since the master was away",
    RemainedAlone = "a survivor was left alone in its group",
    ConcurrentOps = "several operations were in flight at once",
    ByRing = "an operation went around a ring",
    ByStar = "an operation went through a hub",
    Directly = "an operation went directly",
    NoRing = "a group without a ring had a plan",
    TwoGroups = "two groups shared a run",
}

/// How often each situation came about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Coverage {
    counts: Vec<u64>,
}

impl Default for Coverage {
    fn default() -> Self {
        Self {
            counts: vec![0; Cover::ALL.len()],
        }
    }
}

impl Coverage {
    /// Counts one.
    pub fn count(&mut self, what: Cover) {
        self.counts[what as usize] += 1;
    }

    /// How often.
    pub fn of(&self, what: Cover) -> u64 {
        self.counts[what as usize]
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.counts.iter_mut().zip(&other.counts) {
            *sum += more;
        }
    }
}
