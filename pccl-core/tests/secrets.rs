//! What is logged and printed of a run with tickets holds no secret, however much is logged.
#![cfg(all(feature = "cli", feature = "testing"))]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pccl_core::config::{MasterConfig, PeerConfig, Security, TicketConfig, Timing};
use pccl_core::ids::Tag;
use pccl_core::types::ReduceOp;
use pccl_core::wire::ticket::{Secret, Ticket};
use pccl_core::{Communicator, Master, master_status};
use support::state::add_with;
use support::{PEER_TIMEOUT, each, within_limit};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Every part of a secret text that is long enough to tell something.
fn parts(text: &str) -> Vec<&str> {
    let text = text.trim();
    (0..=text.len().saturating_sub(PART))
        .map(|at| &text[at..at + PART])
        .collect()
}

#[test]
fn no_secret_is_ever_logged_or_printed() {
    within_limit(|| {
        let log = Log::default();
        let sink = log.clone();
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_ansi(false)
            .with_writer(move || sink.clone())
            .init();
        let folder = std::env::temp_dir().join(format!("pccl-secrets-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let config = MasterConfig {
            timing: Timing::from_peer_timeout(PEER_TIMEOUT),
            security: Security::Ticket(TicketConfig {
                identity: Some(folder.join("master")),
                addresses: Vec::new(),
            }),
            ..MasterConfig::default()
        };
        let mut printed = format!("{config:?}");
        let master = Master::start("127.0.0.1:0", config).unwrap();
        let ticket = master.ticket().unwrap();
        let mut members = Vec::new();
        for name in ["one", "two"] {
            let config = PeerConfig {
                identity: Some(folder.join(name)),
                ..PeerConfig::default()
            };
            add_with(&mut members, &ticket, config);
        }
        each(&members, |_, member| {
            let mut data = [1.0_f32; 1000];
            member
                .all_reduce_in_place(&mut data, ReduceOp::Sum, Tag(0))
                .unwrap();
        });
        // All that can go wrong with a ticket.
        let mut wrong = Ticket::parse(&ticket).unwrap();
        wrong.secret = Secret([3; 16]);
        let mut elsewhere = Ticket::parse(&ticket).unwrap();
        elsewhere.key.0[1] ^= 1;
        let mut nowhere = Ticket::parse(&ticket).unwrap();
        nowhere.addresses = vec!["no.such.name.invalid:1".into()];
        for bad in [&wrong, &elsewhere, &nowhere] {
            let bad = bad.reveal();
            let peer = Communicator::new(&bad, PeerConfig::default()).unwrap();
            let error = peer.connect(Some(Duration::from_millis(300))).unwrap_err();
            printed += &format!("{peer:?} {error:?} {error}");
            let error = master_status(&bad).unwrap_err();
            printed += &format!("{error:?} {error}");
        }
        let broken = Communicator::new(&ticket[..ticket.len() - 1], PeerConfig::default());
        printed += &format!("{broken:?}");
        printed += &format!("{master:?} {members:?} {wrong:?} {wrong}");
        printed += &master.status().unwrap();
        printed += &master_status(&ticket).unwrap();
        drop((members, master));
        printed += &String::from_utf8_lossy(&log.0.lock().unwrap());
        assert!(printed.contains("reached a member"), "nothing was logged");
        let secret = Ticket::parse(&ticket).unwrap().secret;
        let as_numbers = format!("{:?}", secret.0);
        let mut secrets = vec![ticket[5..].to_owned(), wrong.reveal()[5..].to_owned()];
        secrets.push(as_numbers.trim_matches(['[', ']']).to_owned());
        secrets.push(secret.0.iter().map(|b| format!("{b:02x}")).collect());
        for file in ["master", "one", "two"] {
            let kept = std::fs::read_to_string(folder.join(file)).unwrap();
            let words = kept.split_whitespace().filter(|w| w.len() > PART);
            secrets.extend(words.map(|w| w.replace("pccl-secret-key-", "")));
        }
        for secret in &secrets {
            for part in parts(secret) {
                assert!(!printed.contains(part), "{part} was printed");
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    });
}

/// Characters.
const PART: usize = 12;
