//! The cache on the disk: what survives a restart, and that nothing damaged is ever used.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod toy;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use lily_engine::{DiskOptions, DiskStatus, Engine, EngineError, EngineOptions};
use tempfile::TempDir;
use toy::{Log, Toy, cold, collect, prompt, request, run};

const REPLY: usize = 20;

/// Written while a child is started: until its program runs (which is later than `spawn` returns) it has every file that is open here, and a
/// directory that was locked stays so.
static STARTING: RwLock<()> = RwLock::new(());

/// [`toy::engine`], whose directory is not in the hands of a child that is being started.
fn engine(toy: Toy, options: EngineOptions) -> (Engine, Arc<Mutex<Log>>) {
    let _none_starts = STARTING.read().unwrap();
    toy::engine(toy, options)
}

fn options(directory: &Path) -> EngineOptions {
    EngineOptions {
        disk_cache: Some(DiskOptions {
            directory: directory.into(),
            bytes: 1 << 20,
            identity: [7; 32],
            settle: Duration::ZERO,
        }),
        ..EngineOptions::default()
    }
}

fn with_disk(directory: &Path, change: impl FnOnce(&mut DiskOptions)) -> EngineOptions {
    let mut options = options(directory);
    change(options.disk_cache.as_mut().unwrap());
    options
}

/// Runs `prompts` one after the other on an engine of its own; each has to give what a cold run gives. Returns the cached tokens of each, and
/// what the disk then has.
fn session(options: EngineOptions, prompts: &[Vec<u32>]) -> (Vec<usize>, DiskStatus) {
    let (engine, _) = engine(Toy::new(), options);
    let cached = prompts.iter().map(|prompt| {
        let outcome = run(&engine, request(prompt, REPLY));
        assert_eq!(outcome.ids(), cold(prompt, REPLY), "differs from a cold run");
        outcome.usage.cached_tokens
    });
    let cached = cached.collect();
    engine.finish();
    (cached, engine.status().disk)
}

fn snapshots(directory: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|ending| ending == "snapshot"))
        .collect()
}

/// A directory with the snapshot of one conversation, the conversation's next prompt, and the tokens of it that are in the snapshot.
fn one_snapshot() -> (TempDir, Vec<u32>, usize) {
    let directory = tempfile::tempdir().unwrap();
    let first = prompt(80, 1);
    session(options(directory.path()), std::slice::from_ref(&first));
    let next = [first.clone(), cold(&first, REPLY), prompt(10, 2)].concat();
    assert_eq!(snapshots(directory.path()).len(), 1);
    (directory, next, first.len() + REPLY - 1)
}

#[test]
fn a_conversation_goes_on_after_a_restart() {
    let (directory, next, held) = one_snapshot();
    let further = [next.clone(), cold(&next, REPLY), prompt(5, 3)].concat();
    let (cached, disk) = session(options(directory.path()), std::slice::from_ref(&next));
    assert_eq!(cached, [held]);
    assert_eq!((disk.loaded, disk.failed), (1, 0));
    let (cached, disk) = session(options(directory.path()), &[further, next]);
    assert_eq!(cached[1], held, "an earlier turn serves, too");
    assert!(cached[0] > held);
    assert_eq!(disk.failed, 0);
}

#[test]
fn the_same_prompt_again_needs_no_prefill_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let system = prompt(90, 1);
    let first = [system.clone(), prompt(20, 2)].concat();
    let with_boundary = |prompt: &[u32]| {
        let mut request = request(prompt, REPLY);
        request.snapshot_at = vec![system.len()];
        request
    };
    let (warm, _) = engine(Toy::new(), options(directory.path()));
    run(&warm, with_boundary(&first));
    warm.finish();
    // Another conversation with the same system prompt; then exactly the system prompt.
    let (restarted, _) = engine(Toy::new(), options(directory.path()));
    let other = [system.clone(), prompt(20, 3)].concat();
    let outcome = run(&restarted, with_boundary(&other));
    assert_eq!(
        (outcome.usage.cached_tokens, outcome.ids()),
        (system.len(), cold(&other, REPLY))
    );
    let outcome = run(&restarted, request(&system, REPLY));
    assert_eq!(
        (outcome.usage.cached_tokens, outcome.ids()),
        (system.len(), cold(&system, REPLY))
    );
    restarted.finish();
}

/// Puts `content` in the place of the only snapshot; the next prompt then has to be read anew, and the file has to go.
fn is_refused(directory: &Path, path: &Path, content: &[u8], next: &[u32], what: &str) {
    for other in snapshots(directory) {
        fs::remove_file(other).unwrap();
    }
    fs::write(path, content).unwrap();
    let (cached, disk) = session(options(directory), &[next.to_vec()]);
    assert_eq!(cached, [0], "{what}");
    assert!(!path.exists(), "{what}");
    assert_eq!((disk.loaded, disk.failed), (0, 1), "{what}");
}

#[test]
fn a_flipped_bit_anywhere_is_noticed_and_the_file_deleted() {
    let (directory, next, _) = one_snapshot();
    let path = &snapshots(directory.path())[0];
    let good = fs::read(path).unwrap();
    // Every byte of the header and the checksum, and some of what is between.
    for at in (0..good.len()).filter(|at| *at < 140 || *at + 33 > good.len() || at % 37 == 0) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        is_refused(directory.path(), path, &bad, &next, &format!("byte {at}"));
    }
}

#[test]
fn a_file_that_is_cut_or_has_grown_is_noticed_and_deleted() {
    let (directory, next, _) = one_snapshot();
    let path = &snapshots(directory.path())[0];
    let good = fs::read(path).unwrap();
    for len in (0..good.len())
        .filter(|len| len % 61 == 0)
        .chain([1, 127, 128, good.len() - 1])
    {
        is_refused(directory.path(), path, &good[..len], &next, &format!("{len} bytes"));
    }
    is_refused(
        directory.path(),
        path,
        &[&good[..], &[0]].concat(),
        &next,
        "one byte more",
    );
    is_refused(
        directory.path(),
        path,
        b"something else altogether",
        &next,
        "something else",
    );
}

#[test]
fn a_file_that_tells_a_huge_size_is_refused_before_memory_is_asked_for() {
    let (directory, next, _) = one_snapshot();
    let path = &snapshots(directory.path())[0];
    let good = fs::read(path).unwrap();
    // Tokens, and bytes of state, with the header's checksum made right again.
    for at in [48, 56] {
        for size in [u64::MAX, 1 << 60, 1 << 40] {
            let mut bad = good.clone();
            bad[at..at + 8].copy_from_slice(&size.to_le_bytes());
            let check = blake3::hash(&bad[..96]);
            bad[96..128].copy_from_slice(check.as_bytes());
            is_refused(directory.path(), path, &bad, &next, &format!("{size} at {at}"));
        }
    }
}

#[test]
fn a_file_under_the_name_of_another_is_refused() {
    let (directory, next, _) = one_snapshot();
    let path = snapshots(directory.path())[0].clone();
    session(options(directory.path()), &[prompt(80, 9)]);
    let other = snapshots(directory.path())
        .into_iter()
        .find(|other| *other != path)
        .unwrap();
    is_refused(
        directory.path(),
        &path,
        &fs::read(&other).unwrap(),
        &next,
        "another conversation's",
    );
}

#[test]
fn another_models_snapshots_are_left_alone_and_not_used() {
    let (directory, next, held) = one_snapshot();
    let other = with_disk(directory.path(), |disk| disk.identity = [8; 32]);
    let (cached, disk) = session(other, std::slice::from_ref(&next));
    assert_eq!((&cached[..], disk.entries, disk.failed), (&[0][..], 2, 0));
    assert_eq!(session(options(directory.path()), &[next]).0, [held]);
}

#[test]
fn files_stay_within_their_budget_and_older_turns_go_first() {
    let directory = tempfile::tempdir().unwrap();
    let budget = 12_000;
    let options = with_disk(directory.path(), |disk| disk.bytes = budget);
    let other = prompt(100, 50);
    session(options.clone(), std::slice::from_ref(&other));
    let mut conversation = prompt(80, 1);
    for turn in 0..8 {
        let (_, disk) = session(options.clone(), std::slice::from_ref(&conversation));
        let bytes: u64 = snapshots(directory.path())
            .iter()
            .map(|path| path.metadata().unwrap().len())
            .sum();
        assert_eq!(disk.bytes, bytes);
        assert!(bytes <= budget && disk.entries > 1, "{disk:?}");
        conversation = [conversation.clone(), cold(&conversation, REPLY), prompt(9, 20 + turn)].concat();
    }
    let other = [other.clone(), cold(&other, REPLY), prompt(9, 2)].concat();
    let (cached, _) = session(options, &[conversation, other]);
    assert!(
        cached.iter().all(|&cached| cached > 100),
        "the latest of both are there: {cached:?}"
    );
    // What alone is larger is not written.
    let (_, disk) = session(with_disk(directory.path(), |disk| disk.bytes = 500), &[prompt(100, 3)]);
    assert_eq!((disk.entries, disk.bytes, disk.failed), (0, 0, 0));
}

#[test]
fn turns_that_follow_quickly_are_written_once() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = engine(
        Toy::new(),
        with_disk(directory.path(), |disk| disk.settle = Duration::from_secs(60)),
    );
    let mut conversation = prompt(80, 1);
    for turn in 0..10 {
        let reply = run(&engine, request(&conversation, REPLY)).ids();
        conversation = [conversation.clone(), reply, prompt(9, 20 + turn)].concat();
    }
    assert_eq!(engine.status().disk.written, 0);
    engine.finish();
    assert_eq!(engine.status().disk.written, 1);
}

#[test]
fn short_conversations_are_not_worth_a_file() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(session(options(directory.path()), &[prompt(20, 1)]).1.written, 0);
}

#[test]
fn unfinished_files_go_at_the_start_and_other_files_stay() {
    let (directory, next, held) = one_snapshot();
    let unfinished = snapshots(directory.path())[0].with_extension("writing");
    let others = ["notes.txt", "notes.snapshot", "abc.writing"].map(|name| directory.path().join(name));
    for path in others.iter().chain([&unfinished]) {
        fs::write(path, "something").unwrap();
    }
    assert_eq!(session(options(directory.path()), &[next]).0, [held]);
    assert!(!unfinished.exists());
    assert!(others.iter().all(|path| path.exists()));
}

#[test]
fn a_directory_has_one_user() {
    let directory = tempfile::tempdir().unwrap();
    let (first, _) = engine(Toy::new(), options(directory.path()));
    let refused = |options| Engine::start(Toy::new(), toy::vocabulary(), options).unwrap_err();
    assert!(matches!(
        refused(options(directory.path())),
        EngineError::CacheDirectory { .. }
    ));
    first.finish();
    engine(Toy::new(), options(directory.path()));
}

#[test]
fn what_cannot_be_a_cache_is_refused_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = |options| {
        Engine::start(Toy::new(), toy::vocabulary(), options)
            .unwrap_err()
            .to_string()
    };
    assert!(refused(options(&file)).contains("file"));
    assert!(refused(options(&file.join("below"))).contains("below"));
    let without_memory = EngineOptions {
        cache_memory: 0,
        ..options(directory.path())
    };
    assert!(refused(without_memory).starts_with("cache_memory"));
}

#[test]
fn a_directory_that_goes_away_is_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache");
    let (engine, _) = engine(Toy::new(), options(&path));
    fs::remove_dir_all(&path).unwrap();
    for seed in 0..3 {
        assert_eq!(
            run(&engine, request(&prompt(80, seed), REPLY)).ids(),
            cold(&prompt(80, seed), REPLY)
        );
    }
    engine.finish();
    // After the first failure nothing is tried for a while.
    assert_eq!((engine.status().disk.written, engine.status().disk.failed), (0, 1));
}

/// The file that is to be written is made a way to the device that is always full.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_warning() {
    let (directory, ..) = one_snapshot();
    let path = snapshots(directory.path())[0].clone();
    fs::remove_file(&path).unwrap();
    let (engine, _) = engine(Toy::new(), options(directory.path()));
    let unfinished = path.with_extension("writing");
    std::os::unix::fs::symlink("/dev/full", &unfinished).unwrap();
    let first = prompt(80, 1);
    assert_eq!(run(&engine, request(&first, REPLY)).ids(), cold(&first, REPLY));
    engine.finish();
    assert_eq!((engine.status().disk.written, engine.status().disk.failed), (0, 1));
    assert!(fs::symlink_metadata(&unfinished).is_err(), "nothing is left of it");
    assert!(snapshots(directory.path()).is_empty());
}

const CHILD: &str = "LILY_TEST_CACHE_DIRECTORY";

/// Writes snapshots until it is killed; run by the next test in a process of its own.
#[test]
#[ignore = "a part of another test"]
fn child_that_writes() {
    let directory = PathBuf::from(std::env::var_os(CHILD).unwrap());
    let (engine, _) = engine(Toy::new(), with_disk(&directory, |disk| disk.bytes = 100 << 20));
    for seed in 0.. {
        collect(engine.submit(request(&prompt(20_000, seed), REPLY)).unwrap());
    }
}

#[test]
fn a_kill_in_the_midst_of_a_write_leaves_nothing_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let (mut hit, mut rounds) = (0, 0);
    while hit < 2 || rounds < 6 {
        assert!(began.elapsed() < Duration::from_secs(60), "no kill hit a write");
        let starting = STARTING.write().unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_writes", "--ignored"])
            .env(CHILD, directory.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // Once it is at work, at a time that differs each round.
        while snapshots(directory.path()).is_empty() && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(starting);
        std::thread::sleep(Duration::from_micros(20_000 + 7_919 * rounds));
        child.kill().unwrap();
        child.wait().unwrap();
        rounds += 1;
        let names = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().path());
        hit += u32::from(
            names
                .into_iter()
                .any(|path| path.extension().is_some_and(|ending| ending == "writing")),
        );
        let written = snapshots(directory.path()).len();
        let (engine, _) = engine(Toy::new(), with_disk(directory.path(), |disk| disk.bytes = 100 << 20));
        assert_eq!(engine.status().disk.failed, 0);
        for seed in 0..written as u32 {
            let first = prompt(20_000, seed);
            let next = [first.clone(), cold(&first, REPLY), prompt(10, 2)].concat();
            let outcome = run(&engine, request(&next, 2));
            assert_eq!(outcome.ids(), cold(&next, 2));
        }
        engine.finish();
        let disk = engine.status().disk;
        assert_eq!(disk.failed, 0);
        assert!(disk.loaded > 0);
        for path in snapshots(directory.path()) {
            fs::remove_file(path).unwrap();
        }
    }
}
