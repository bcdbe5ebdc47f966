//! The program `pccl-master`.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use pccl_core::state::digest::digest_tensor;
use pccl_core::types::{DataType, DigestKind, SyncStrategy};
use support::state::{State, add, sync, told};
use support::within_limit;

const PROGRAM: &str = env!("CARGO_BIN_EXE_pccl-master");

#[test]
fn it_serves_tells_its_status_and_ends_its_members_calls() {
    within_limit(|| {
        let mut program = Command::new(PROGRAM)
            .args([
                "--listen",
                "127.0.0.1:0",
                "--peer-timeout",
                "3",
                "--digests",
                "cryptographic",
                "--log-level",
                "info",
            ])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(program.stderr.take().unwrap()).lines();
        let line = log.find(|l| l.as_ref().unwrap().contains("the master listens"));
        let line = line.unwrap().unwrap();
        let at = line.find("127.0.0.1:").unwrap();
        let end = |c: char| !(c.is_ascii_digit() || c == '.' || c == ':');
        let address = line[at..].split(end).next().unwrap().to_owned();

        let mut members = Vec::new();
        add(&mut members, &address, 0);
        let sends = |value| State::simple(value).with(SyncStrategy::SendOnly);
        add(&mut members, &address, 0);
        let results = sync(&members, &mut [sends(1), sends(2)]);
        let content = [2; support::state::BYTES];
        let count = content.len() as u64;
        let digest = digest_tensor(DigestKind::Cryptographic, DataType::U8, count, &content);
        assert!(told(&results[1]).contains(&digest.root.to_string()));
        let status = Command::new(PROGRAM)
            .args(["status", &address])
            .output()
            .unwrap();
        assert!(status.status.success());
        let status = String::from_utf8(status.stdout).unwrap();
        assert!(
            status.trim().starts_with('{') && status.trim().ends_with('}'),
            "{status}"
        );

        program.kill().unwrap();
        program.wait().unwrap();
    });
}

#[test]
fn a_signal_ends_it_in_good_order() {
    if std::env::consts::FAMILY != "unix" {
        println!("left out: signals to single processes");
        return;
    }
    within_limit(|| {
        for signal in ["-INT", "-TERM"] {
            let mut program = Command::new(PROGRAM)
                .args(["--listen", "127.0.0.1:0"])
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut log = BufReader::new(program.stderr.take().unwrap()).lines();
            let begun = log.any(|line| line.unwrap().contains("the master listens"));
            assert!(begun);
            let process = program.id().to_string();
            let mut kill = Command::new("kill");
            assert!(kill.args([signal, &process]).status().unwrap().success());
            let rest: Vec<_> = log.map(Result::unwrap).collect();
            assert!(rest.iter().any(|l| l.contains("asked to end")), "{rest:?}");
            assert!(program.wait().unwrap().success());
        }
    });
}

#[test]
fn asking_nobody_fails_and_says_so() {
    let asked = Command::new(PROGRAM)
        .args(["status", "127.0.0.1:1"])
        .output()
        .unwrap();
    assert!(!asked.status.success());
    let said = String::from_utf8(asked.stderr).unwrap();
    assert!(said.contains("127.0.0.1:1"), "{said}");
}
