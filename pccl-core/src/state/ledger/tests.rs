use proptest::prelude::*;

use super::*;
use crate::state::digest::{CHUNK_BYTES, digest_tensor};

const A: MemberId = MemberId(1);
const B: MemberId = MemberId(2);
const FAST: DigestKind = DigestKind::Fast;

fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 4096) as u8 ^ seed).collect()
}

fn chunks_of(bytes: &[u8]) -> Vec<ContentDigest> {
    digest_tensor(FAST, DataType::U8, bytes.len() as u64, bytes).chunks
}

fn wanted(own: &[u8], elected: Option<&[u8]>) -> Wanted {
    let expected = elected.map(|e| digest_tensor(FAST, DataType::U8, e.len() as u64, e).root);
    Wanted {
        kind: FAST,
        data_type: DataType::U8,
        count: own.len() as u64,
        expected,
        own: chunks_of(own),
    }
}

/// Carries one step out against a seeder that holds `content`. Whether there was one.
fn serve(ledger: &mut Ledger, seeder: MemberId, step: Step, content: &[ContentDigest]) -> bool {
    match step {
        Step::List {
            tensor,
            first,
            count,
        } => {
            let page = &content[first as usize..first as usize + count as usize];
            ledger.listed(seeder, tensor, page).unwrap();
        }
        Step::Chunks {
            tensor,
            first,
            count,
        } => {
            for chunk in first..first + u64::from(count) {
                let came = ledger.check(seeder, tensor, chunk, content[chunk as usize]);
                assert_eq!(came, Came::Right);
                assert!(ledger.stored(tensor, chunk));
            }
        }
        Step::Wait | Step::Finished => return false,
    }
    true
}

fn drain(ledger: &mut Ledger, seeder: MemberId, content: &[ContentDigest]) -> u64 {
    let mut chunks = 0;
    for _ in 0..10_000 {
        let step = ledger.next(seeder);
        if let Step::Chunks { count, .. } = step {
            chunks += u64::from(count);
        }
        if !serve(ledger, seeder, step, content) {
            return chunks;
        }
    }
    panic!("it never ends");
}

const CHUNK: usize = CHUNK_BYTES as usize;

#[test]
fn only_chunks_that_differ_are_fetched() {
    let elected = content(1, CHUNK * 5 + 3);
    let mut own = elected.clone();
    own[CHUNK + 5] ^= 1;
    own[CHUNK * 5 + 1] ^= 1;
    let mut ledger = Ledger::new(vec![wanted(&own, Some(&elected))]);
    assert!(!ledger.is_complete());
    assert_eq!(drain(&mut ledger, A, &chunks_of(&elected)), 2);
    assert!(ledger.is_complete());
    assert_eq!(ledger.next(B), Step::Finished);
}

#[test]
fn nothing_is_empty_and_empty_tensors_need_nothing() {
    assert_eq!(Ledger::new(vec![]).next(A), Step::Finished);
    assert_eq!(
        Ledger::new(vec![wanted(&[], Some(&[]))]).next(A),
        Step::Finished
    );
    assert_eq!(Ledger::new(vec![wanted(&[], None)]).next(A), Step::Finished);
}

#[test]
fn a_list_that_is_not_the_elected_one_is_refused() {
    let elected = content(1, CHUNK * 2);
    let own = content(2, CHUNK * 2);
    let mut ledger = Ledger::new(vec![wanted(&own, Some(&elected))]);
    let list = Step::List {
        tensor: 0,
        first: 0,
        count: 2,
    };
    assert_eq!(ledger.next(A), list);
    // While one gives the list the others wait.
    assert_eq!(ledger.next(A), Step::Wait);
    assert_eq!(ledger.next(B), Step::Wait);
    assert!(ledger.listed(A, 0, &chunks_of(&own)).is_err());
    ledger.lost(A);
    assert_eq!(ledger.next(B), list);
    assert!(ledger.listed(B, 0, &chunks_of(&elected)[..1]).is_err());
    ledger.lost(B);
    // One that is late is as good as any, if it is right.
    assert!(ledger.listed(B, 0, &chunks_of(&own)).is_err());
    assert_eq!(ledger.listed(B, 0, &chunks_of(&elected)), Ok(0));
    assert_eq!(ledger.listed(A, 0, &chunks_of(&own)), Ok(0));
    drain(&mut ledger, A, &chunks_of(&elected));
    assert!(ledger.is_complete());
}

#[test]
fn a_tensor_of_one_chunk_needs_no_list() {
    let (elected, own) = (content(1, 100), content(2, 100));
    let mut ledger = Ledger::new(vec![
        wanted(&own, Some(&elected)),
        wanted(&elected, Some(&elected)),
        wanted(&own, None),
    ]);
    let chunk = Step::Chunks {
        tensor: 0,
        first: 0,
        count: 1,
    };
    assert_eq!(ledger.next(A), chunk);
    let [right] = chunks_of(&elected)[..] else {
        panic!();
    };
    let other = chunks_of(&own)[0];
    assert_eq!(ledger.check(A, 0, 0, other), Came::Wrong);
    assert_eq!(ledger.check(A, 0, 1, right), Came::Late);
    assert_eq!(ledger.check(A, 0, 0, right), Came::Right);
    ledger.lost(A);
    assert_eq!(ledger.next(B), chunk);
    ledger.stored(0, 0);
    // The second one is right already, and only a list says what the third one must be.
    let list = Step::List {
        tensor: 2,
        first: 0,
        count: 1,
    };
    assert_eq!(ledger.next(B), list);
    serve(&mut ledger, B, list, &chunks_of(&elected));
    assert_eq!(drain(&mut ledger, B, &chunks_of(&elected)), 1);
    assert!(ledger.is_complete());
}

#[test]
fn what_a_lost_seeder_was_asked_for_comes_from_another() {
    let elected = content(1, CHUNK * 20);
    let list = chunks_of(&elected);
    let own = content(2, CHUNK * 20);
    let mut ledger = Ledger::new(vec![wanted(&own, Some(&elected))]);
    let step = ledger.next(A);
    serve(&mut ledger, A, step, &list);
    let (a, b) = (ledger.next(A), ledger.next(B));
    assert!(a != b && matches!(b, Step::Chunks { .. }));
    ledger.stored(0, 0);
    ledger.lost(A);
    serve(&mut ledger, B, b, &list);
    // All but the one that A had given and those that B has.
    assert_eq!(drain(&mut ledger, B, &list), 20 - 1 - 8);
    assert!(ledger.is_complete());
}

#[test]
fn a_tensor_that_may_differ_comes_from_one_member() {
    let (a, b) = (content(1, CHUNK * 20), content(2, CHUNK * 20));
    let mut mixed = a.clone();
    mixed[..CHUNK].copy_from_slice(&b[..CHUNK]);
    let mut ledger = Ledger::new(vec![wanted(&content(3, CHUNK * 20), None)]);
    let step = ledger.next(A);
    serve(&mut ledger, A, step, &chunks_of(&a));
    let _ = ledger.next(A);
    assert_eq!(ledger.next(B), Step::Wait);
    ledger.stored(0, 5);
    ledger.lost(A);
    // B's list is asked for, and all of its chunks come from B.
    assert_eq!(drain(&mut ledger, B, &chunks_of(&b)), 20);
    assert!(ledger.is_complete());
    assert_eq!(ledger.check(A, 0, 5, chunks_of(&a)[5]), Came::Late);
    // A seeder that is lost after it has given all of it changes nothing.
    ledger.lost(B);
    assert!(ledger.is_complete());
}

#[test]
fn what_a_stalled_seeder_was_asked_for_comes_from_whoever_is_first() {
    let elected = content(1, CHUNK * 12);
    let list = chunks_of(&elected);
    let own = content(2, CHUNK * 12);
    let mut ledger = Ledger::new(vec![wanted(&own, Some(&elected))]);
    let step = ledger.next(A);
    serve(&mut ledger, A, step, &list);
    assert!(matches!(ledger.next(A), Step::Chunks { count: 8, .. }));
    assert_eq!(drain(&mut ledger, B, &list), 4);
    assert!(ledger.stalled(A) && !ledger.stalled(A) && !ledger.stalled(B));
    // Late as it is, what nobody else has been asked for is welcome.
    assert_eq!(ledger.check(A, 0, 3, list[3]), Came::Right);
    assert!(ledger.stored(0, 3));
    assert_eq!(ledger.next(B), chunks(0, 3));
    // And so is what another one has been asked for and not given; the second time it is not.
    assert_eq!(ledger.check(A, 0, 1, list[1]), Came::Right);
    assert!(ledger.stored(0, 1) && !ledger.stored(0, 1));
    assert_eq!(ledger.check(B, 0, 1, list[1]), Came::Late);
    assert!(ledger.stored(0, 0) && ledger.stored(0, 2));
    assert_eq!(drain(&mut ledger, B, &list), 4);
    assert!(ledger.is_complete());
}

#[test]
fn a_tensor_that_may_differ_stays_with_a_seeder_that_is_slow() {
    let bytes = content(1, CHUNK * 2);
    let mut ledger = Ledger::new(vec![wanted(&content(2, CHUNK * 2), None)]);
    let step = ledger.next(A);
    assert!(!ledger.stalled(A) && ledger.next(B) == Step::Wait);
    serve(&mut ledger, A, step, &chunks_of(&bytes));
    assert!(ledger.listed(B, 0, &chunks_of(&bytes)).is_err());
    assert_eq!(drain(&mut ledger, A, &chunks_of(&bytes)), 2);
    assert!(ledger.is_complete());
}

#[test]
fn seeders_of_one_speed_get_equal_shares() {
    let elected = content(1, CHUNK * 24);
    let list = chunks_of(&elected);
    let own = content(2, CHUNK * 24);
    let ledger = Ledger::new(vec![wanted(&own, Some(&elected))]);
    let mut ledger = ledger.shared_by(3);
    let step = ledger.next(A);
    serve(&mut ledger, A, step, &list);
    let mut shares = BTreeMap::new();
    for turn in 0..200 {
        let seeder = MemberId(turn % 3);
        if let Step::Chunks { count, .. } = ledger.next(seeder) {
            *shares.entry(seeder).or_insert(0) += count;
        }
    }
    assert_eq!(shares.values().sum::<u32>(), 24);
    assert!(
        shares.values().all(|share| (7..=9).contains(share)),
        "{shares:?}"
    );
}

/// Requests for lists and for chunks that it takes to fetch tensors of so many chunks each.
fn requests(tensors: usize, chunks: usize, seeders: u64) -> (usize, usize) {
    let digests = |seed| (0..chunks as u128).map(move |i| ContentDigest::fast(seed + i));
    let list: Vec<ContentDigest> = digests(1).collect();
    let count = (CHUNK * chunks) as u64;
    let wanted = Wanted {
        kind: FAST,
        data_type: DataType::U8,
        count,
        expected: Some(root(FAST, DataType::U8, count, &list)),
        own: digests(1_000).collect(),
    };
    let mut ledger = Ledger::new(vec![wanted; tensors]).shared_by(seeders as usize);
    let (mut lists, mut others) = (0, 0);
    for turn in 0..1_000 {
        let seeder = MemberId(turn % seeders);
        let step = ledger.next(seeder);
        match step {
            Step::List { .. } => lists += 1,
            Step::Chunks { .. } => others += 1,
            Step::Wait | Step::Finished => {}
        }
        serve(&mut ledger, seeder, step, &list);
    }
    assert!(ledger.is_complete());
    (lists, others)
}

#[test]
fn many_tensors_take_hardly_more_requests_than_one_as_large() {
    assert_eq!(requests(1, 256, 1), (1, 32));
    assert_eq!(requests(64, 4, 1), (64, 64));
    let (lists, one) = requests(1, 256, 3);
    assert!(lists == 1 && one < 64, "{one}");
    // A request is for one tensor: one each, and only the last ones are cut smaller.
    let (lists, many) = requests(64, 4, 3);
    assert!(lists == 64 && many < 64 + 40, "{many}");
}

fn chunks(first: u64, count: u32) -> Step {
    Step::Chunks {
        tensor: 0,
        first,
        count,
    }
}

#[test]
fn long_lists_come_in_pages() {
    let chunks = u64::from(DIGESTS_PER_REQUEST) * 2 + 10;
    let list: Vec<ContentDigest> = (0..chunks).map(|i| ContentDigest::fast(i.into())).collect();
    let count = chunks * CHUNK_BYTES;
    let mut ledger = Ledger::new(vec![Wanted {
        kind: FAST,
        data_type: DataType::U8,
        count,
        expected: Some(root(FAST, DataType::U8, count, &list)),
        own: vec![ContentDigest::fast(u128::MAX); chunks as usize],
    }]);
    assert_eq!(drain(&mut ledger, A, &list), chunks);
    assert!(ledger.is_complete());
}

proptest! {
    #[test]
    fn every_chunk_is_stored_whoever_is_lost_when(
        events in proptest::collection::vec((0..3u64, any::<bool>()), 0..60),
        tensors in proptest::collection::vec((0..30u64, any::<bool>()), 1..4),
    ) {
        let list = |(chunks, _): &(u64, bool)| (0..*chunks).map(|i| ContentDigest::fast(i.into())).collect();
        let lists: Vec<Vec<ContentDigest>> = tensors.iter().map(list).collect();
        let wants = lists.iter().zip(&tensors).map(|(list, (chunks, differs))| {
            let count = chunks * CHUNK_BYTES;
            let root = root(FAST, DataType::U8, count, list);
            let mut own = list.clone();
            own.iter_mut().step_by(3).for_each(|digest| digest.0[2] += 1);
            Wanted {
                kind: FAST,
                data_type: DataType::U8,
                count,
                expected: (!differs).then_some(root),
                own,
            }
        });
        let mut ledger = Ledger::new(wants.collect());
        let of = |step: Step| match step {
            Step::List { tensor, .. } | Step::Chunks { tensor, .. } => tensor,
            _ => 0,
        };
        for (who, lost) in events {
            let seeder = MemberId(who);
            let step = ledger.next(seeder);
            if lost && seeder == A {
                ledger.stalled(seeder);
            } else if lost {
                ledger.lost(seeder);
            } else {
                serve(&mut ledger, seeder, step, &lists[of(step)]);
            }
        }
        for seeder in [MemberId(0), A, B] {
            ledger.lost(seeder);
        }
        for _ in 0..1000 {
            let step = ledger.next(A);
            if !serve(&mut ledger, A, step, &lists[of(step)]) {
                break;
            }
        }
        prop_assert!(ledger.is_complete());
    }
}
