//! The whole of `bench`, with everything small.
#![allow(missing_docs, clippy::unwrap_used)]

use std::process::Command;

#[test]
fn net_a_short_bench_measures_everything_and_writes_it_down() {
    let json = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench.json");
    let arguments = [
        "bench",
        "--n=2,3",
        "--sizes=64K,1M",
        "--reps=2",
        "--rounds=1",
        "--operations=12",
        "--tag-size=64K",
        "--crowd=5",
        "--wait=0.2",
    ];
    let ended = Command::new(env!("CARGO_BIN_EXE_pccl-stress"))
        .args(arguments)
        .arg("--json")
        .arg(&json)
        .output()
        .unwrap();
    let table = String::from_utf8(ended.stdout).unwrap();
    let errors = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success(), "{table}{errors}");
    let figures = std::fs::read_to_string(json).unwrap();
    let figures: serde_json::Value = serde_json::from_str(&figures).unwrap();
    let rows = |name: &str| figures[name].as_array().unwrap().clone();
    // Two groups, two sizes, both layouts; and eight tensors at once in both groups.
    assert_eq!(rows("reduced").len(), 10, "{table}");
    assert_eq!(rows("small").len(), 3, "{table}");
    assert_eq!(rows("waited").len(), 4, "{table}");
    assert!(rows("troubles").is_empty());
    for row in rows("reduced").iter().chain(&rows("small")) {
        assert!(row["library"]["median"].as_f64().unwrap() > 0.0);
        assert!(row["floor"]["median"].as_f64().unwrap() > 0.0);
    }
    // What the loop sends is what the library's ring sends, headers apart.
    for row in rows("reduced") {
        let sent = |side: &str| row[side]["sent"].as_f64().unwrap();
        assert!((sent("library") / sent("floor") - 1.0).abs() < 0.5, "{row}");
    }
}

#[test]
fn net_what_is_asked_of_peers_reaches_them() {
    let ended = Command::new(env!("CARGO_BIN_EXE_pccl-stress"))
        .args(["bench", "--n=3", "--sizes=64K", "--reps=1", "--rounds=1"])
        .args(["--only=reduce", "--buffers=apart", "--no-floor"])
        .args(["--algorithm=direct", "--quantize=minmax-u8", "--lanes=3"])
        .output()
        .unwrap();
    let table = String::from_utf8(ended.stdout).unwrap();
    assert!(ended.status.success(), "{table}");
    assert!(table.contains("| 3 | 64 KiB | apart |"), "{table}");
}

#[test]
fn net_what_cannot_be_measured_is_said() {
    let ended = Command::new(env!("CARGO_BIN_EXE_pccl-stress"))
        .args([
            "bench",
            "--n=2",
            "--only=latency",
            "--launch=there-is-no-such-program",
        ])
        .output()
        .unwrap();
    assert!(!ended.status.success());
    let table = String::from_utf8(ended.stdout).unwrap();
    assert!(table.contains("does not start"), "{table}");
}
