//! Real directories, with faults.

use super::*;
use crate::poller::{Interest, Poller, Token};
use concord_core::{Epoch, ObjectId, Position, RequestNumber, SessionId};
use concord_log::{Begin, Entry, Part};
use concord_wire::control::LogEnd;
use concord_wire::record::Record;

use crate::directory::{Broken, inspect};
use crate::scrub::{Pace, Progress, Scrub};

const NODE: u16 = 2;
const STORAGE: u64 = 0x5707;

/// A directory that is gone with its test.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Place {
    fn new(name: &str) -> Place {
        let unique = format!("concord-disk-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(unique);
        let _ = std::fs::remove_dir_all(&path);
        Place(path)
    }

    fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    fn open(&self) -> Directory {
        Directory::open(&self.data(), NODE, STORAGE).map_err(Error::from).unwrap()
    }

    fn start(&self, fault: DiskFault) -> Disk {
        let directory = self.open();
        let run = directory.found().marks.run + 1;
        let marks = Marks { run, ..Marks::default() };
        Disk::start(directory, NODE, &marks, fault).unwrap()
    }

    fn newest(&self) -> PathBuf {
        let names = std::fs::read_dir(self.data()).unwrap().map(|e| e.unwrap().path());
        names.filter(|p| p.extension().is_some_and(|e| e == "log")).max().unwrap()
    }
}

/// Waits for the disk as the loop does.
fn wait(disk: &mut Disk) -> Result<Written, Error> {
    let poller = Poller::new().unwrap();
    poller.add(&*disk, Token(1), Interest::READ).unwrap();
    let (mut raw, mut events) = (Vec::new(), Vec::new());
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        let now = crate::clock::now().instant;
        poller.wait(now, now.after(10_000_000), &mut raw, &mut events).unwrap();
        if !events.is_empty()
            && let Some(written) = disk.take()?
        {
            return Ok(written);
        }
    }
    panic!("the disk never answered");
}

fn record(end: &mut LogEnd, batch: &mut Batch) {
    let mut bytes = vec![];
    let record = Record {
        position: Position(end.position + 1),
        epoch: Epoch(1),
        session: SessionId(7),
        request: RequestNumber(1),
        now_ms: 1,
        obj_id: ObjectId(1),
        command: b"command",
        ..Record::EMPTY
    };
    let hash = record.emit(end.hash, &mut bytes);
    *end = LogEnd { position: end.position + 1, hash };
    batch.record(&bytes);
}

/// Writes records; the bytes of the log.
fn write(disk: &mut Disk, end: &mut LogEnd, count: u64) -> u64 {
    let mut batch = Batch::default();
    (0..count).for_each(|_| record(end, &mut batch));
    disk.write(batch).unwrap();
    wait(disk).unwrap().log_bytes
}

/// Waits until a segment is removed.
fn until_gone(place: &Place, segment: u64) {
    let began = Instant::now();
    while segment_path(&place.data(), STORAGE, segment).exists() {
        assert!(began.elapsed() < Duration::from_secs(20), "segment {segment} is there");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The thread holds the lock until it has seen that the loop is gone.
fn end(disk: Disk, place: &Place) {
    drop(disk);
    let began = Instant::now();
    while Directory::open(&place.data(), NODE, STORAGE).is_err() {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn records(directory: &Directory) -> u64 {
    let mut count = 0;
    let each = |entry: Entry<'_>| {
        count += u64::from(matches!(entry, Entry::Record(_)));
        Ok(())
    };
    directory.each_entry(each).unwrap();
    count
}

#[test]
fn what_was_said_to_be_durable_is_there_and_each_start_counts() {
    let place = Place::new("durable");
    let mut log = LogEnd::default();
    for run in 1..=3 {
        let mut disk = place.start(DiskFault::default());
        let Err(Broken::Refused(error)) = Directory::open(&place.data(), NODE, STORAGE) else {
            panic!("two replicas in one directory")
        };
        assert!(error.to_string().contains("another replica keeps its data in"), "{error}");
        write(&mut disk, &mut log, 40);
        end(disk, &place);
        let found = place.open();
        assert_eq!((found.found().end, found.found().marks.run), (log, run));
        assert_eq!((records(&found), found.storage()), (log.position, STORAGE));
    }
    let error = Error::from(Directory::open(&place.data(), 3, 1).unwrap_err()).to_string();
    assert!(error.contains("is the data of replica 2, and this is replica 3"), "{error}");
    let text = inspect(&place.data()).unwrap();
    assert!(text.contains("ends with record 120") && text.ends_with("intact\n"), "{text}");
}

/// A crash leaves nothing of the last group, or its first half.
#[test]
fn a_power_cut_takes_what_is_not_synced_and_no_more() {
    for groups in 1..=2 {
        let place = Place::new("power");
        let hold = DiskFault { hold: Some(Duration::from_millis(30)), ..DiskFault::default() };
        let mut disk = place.start(hold);
        let mut log = LogEnd::default();
        for _ in 0..groups {
            write(&mut disk, &mut log, 1);
        }
        let durable = log;
        let mut batch = Batch::default();
        record(&mut log, &mut batch);
        disk.write(batch).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        // The process would be dead now: nobody was told anything.
        let copy = Place::new("power-copy");
        std::fs::create_dir_all(copy.data()).unwrap();
        for entry in std::fs::read_dir(place.data()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.data().join(entry.file_name())).unwrap();
        }
        let found = copy.open().found().clone();
        assert_eq!((found.end, found.cut.is_some()), (durable, groups == 2));
        wait(&mut disk).unwrap();
        end(disk, &place);
        assert_eq!(place.open().found().end, log);
    }
}

#[test]
fn a_failed_sync_is_final() {
    let place = Place::new("fail");
    let mut disk = place.start(DiskFault { fail_sync: Some(3), ..DiskFault::default() });
    let mut log = LogEnd::default();
    write(&mut disk, &mut log, 3);
    let mut batch = Batch::default();
    record(&mut log, &mut batch);
    disk.write(batch).unwrap();
    let error = wait(&mut disk).unwrap_err().to_string();
    assert!(error.contains("cannot sync") && error.contains("00000001.log"), "{error}");
    assert!(disk.write(Batch::default()).is_err(), "it goes on");
}

/// A torn end is cut and damage before it is set aside with file and offset.
#[test]
fn torn_end_is_cut_and_damage_is_set_aside() {
    let place = Place::new("torn");
    let mut disk = place.start(DiskFault::default());
    let mut log = LogEnd::default();
    write(&mut disk, &mut log, 2);
    let durable = log;
    write(&mut disk, &mut log, 2);
    end(disk, &place);
    let path = place.newest();
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    assert!(
        inspect(&place.data()).unwrap().contains("an incomplete group after it will be cut off")
    );
    assert_eq!(place.open().found().end, durable);
    assert!(std::fs::read(&path).unwrap().len() < whole.len() - 5);
    // A bit of a synced group.
    let mut flipped = whole.clone();
    flipped[100] ^= 1;
    std::fs::write(&path, &flipped).unwrap();
    let line = inspect(&place.data()).unwrap_err().to_string();
    assert!(line.contains("00000001.log: damaged at offset"), "{line}");
    let (directory, aside) = Directory::open_or_set_aside(&place.data(), NODE, 99).unwrap();
    let line = aside.unwrap().to_string();
    assert!(
        line.contains("00000001.log: damaged at offset") && line.contains(".damaged-1"),
        "{line}"
    );
    assert_eq!((directory.storage(), directory.found().next_segment), (99, 1));
    let aside = place.0.join("data.damaged-1").join(path.file_name().unwrap());
    assert_eq!(std::fs::read(aside).unwrap(), flipped, "nothing of it was touched");
}

#[test]
fn a_whole_snapshot_takes_the_segments_before_it_away() {
    let place = Place::new("snapshot");
    let mut disk = place.start(DiskFault::default());
    let mut log = LogEnd::default();
    write(&mut disk, &mut log, 10);
    let part = |number, is_first, is_last| Part {
        snapshot: 1,
        number,
        position: 10,
        hash: log.hash,
        is_first,
        is_last,
        bytes: b"state",
    };
    let mut batch = Batch::default();
    batch.part(&part(0, true, false)).unwrap();
    disk.write(batch).unwrap();
    let before = wait(&mut disk).unwrap().log_bytes;
    let mut batch = Batch::default();
    batch.part(&part(1, false, true)).unwrap();
    disk.write(batch).unwrap();
    wait(&mut disk).unwrap();
    until_gone(&place, 1);
    let mut end_of_log = log;
    let began = Instant::now();
    while write(&mut disk, &mut end_of_log, 1) >= before {
        assert!(began.elapsed() < Duration::from_secs(20), "the segment counts no more");
    }
    end(disk, &place);
    let found = place.open();
    assert!(matches!(found.found().begin, Begin::At { segment: 2, .. }), "{:?}", found.found());
    assert_eq!(found.found().end, end_of_log);
    assert_eq!(records(&found), end_of_log.position - log.position);
}

/// Segments were removed as soon as the snapshot behind them was synced: what was damaged on its
/// way to the disk was all that was left.
#[test]
fn bug_22_1_segments_stay_until_the_snapshot_is_read_back() {
    let place = Place::new("readback");
    let fault = DiskFault { damage_snapshot: Some(1), ..DiskFault::default() };
    let mut disk = place.start(fault);
    let mut log = LogEnd::default();
    write(&mut disk, &mut log, 10);
    let snapshot = |disk: &mut Disk, snapshot| {
        let (position, hash) = (log.position, log.hash);
        for (number, is_first, is_last) in [(0, true, false), (1, false, true)] {
            let bytes = &[7; 100_000];
            let part = Part { snapshot, number, position, hash, is_first, is_last, bytes };
            let mut batch = Batch::default();
            batch.part(&part).unwrap();
            disk.write(batch).unwrap();
            wait(disk).unwrap();
        }
    };
    snapshot(&mut disk, 1);
    let began = Instant::now();
    let damage = loop {
        if let Some(damage) = disk.take_damage() {
            break damage;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "the damage is found");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(damage.contains("00000002.log: damaged at offset"), "{damage}");
    let first = segment_path(&place.data(), STORAGE, 1);
    assert!(first.exists(), "nothing takes its place yet");
    // The next one does, as it is asked for when damage is found.
    snapshot(&mut disk, 2);
    until_gone(&place, 2);
    assert!(!first.exists());
    write(&mut disk, &mut log, 3);
    end(disk, &place);
    let found = place.open();
    assert!(matches!(found.found().begin, Begin::At { segment: 3, .. }), "{:?}", found.found());
    assert_eq!((found.found().end, records(&found)), (log, 3));
}

/// A snapshot that was read back while the next one was written had removed its segments; nobody
/// heard of that, the next one removed them again, and the replica left.
#[test]
fn bug_22_141_a_snapshot_ends_while_the_last_one_is_read_back() {
    let place = Place::new("readbacks");
    let hold = Some(Duration::from_millis(300));
    let mut disk = place.start(DiskFault { hold, ..DiskFault::default() });
    let mut log = LogEnd::default();
    write(&mut disk, &mut log, 10);
    let (position, hash) = (log.position, log.hash);
    let bytes = &[7; 3_000_000];
    for snapshot in 1..=4 {
        let part =
            Part { snapshot, number: 0, position, hash, is_first: true, is_last: true, bytes };
        let mut batch = Batch::default();
        batch.part(&part).unwrap();
        disk.write(batch).unwrap();
        wait(&mut disk).unwrap();
    }
    until_gone(&place, 4);
    write(&mut disk, &mut log, 3);
    end(disk, &place);
    let found = place.open();
    assert!(matches!(found.found().begin, Begin::At { segment: 5, .. }), "{:?}", found.found());
    assert_eq!((found.found().end, records(&found)), (log, 3));
}

/// Damage that comes later is found and is gone with the next snapshot.
#[test]
fn later_damage_is_found_and_replaced() {
    let place = Place::new("scrub");
    let mut log = LogEnd::default();
    let mut disk = place.start(DiskFault::default());
    for _ in 0..20 {
        write(&mut disk, &mut log, 10);
    }
    let pace = Pace { rest: Duration::from_millis(5), bytes_per_second: 1 << 30 };
    let mut scrub = Scrub::start(place.data(), pace, disk.bell()).unwrap();
    let until = |scrub: &Scrub, is: &dyn Fn(Progress) -> bool| {
        let began = Instant::now();
        while !is(scrub.progress()) {
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", scrub.progress());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    until(&scrub, &|progress| progress.passes > 2);
    assert_eq!((scrub.take_damage(), scrub.progress().damages), (None, 0));
    // A bit of what is not the last group.
    let path = place.newest();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let (mut byte, at) = ([0], file.metadata().unwrap().len() / 2);
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    until(&scrub, &|progress| progress.damages > 0);
    let name = path.file_name().unwrap().to_str().unwrap();
    let damage = scrub.take_damage().unwrap();
    assert!(damage.contains(name) && damage.contains("damaged at offset"), "{damage}");
    let (mut batch, snapshot) = (Batch::default(), 1);
    let (position, hash, bytes) = (log.position, log.hash, b"state".as_slice());
    let part = Part { snapshot, number: 0, position, hash, is_first: true, is_last: true, bytes };
    batch.part(&part).unwrap();
    disk.write(batch).unwrap();
    wait(&mut disk).unwrap();
    until(&scrub, &|progress| progress.damage.is_none());
    write(&mut disk, &mut log, 1);
    drop(scrub);
    end(disk, &place);
    assert_eq!(place.open().found().end, log);
}

/// A pass held all files open that were there when it began, so that the space of removed segments
/// was not free before its end: hours, where there is much to read.
#[test]
fn bug_22_134_scrub_frees_removed_segments() {
    let place = Place::new("scrub-space");
    let mut log = LogEnd::default();
    let starts = (0..4).map(|nth| {
        let mut disk = place.start(DiskFault::default());
        for _ in 0..20 {
            write(&mut disk, &mut log, 10);
        }
        if nth < 3 {
            end(disk, &place);
            return None;
        }
        Some(disk)
    });
    let mut disk = starts.last().flatten().unwrap();
    // A segment takes some tenths of a second.
    let pace = Pace { rest: Duration::from_millis(5), bytes_per_second: 64 << 10 };
    let scrub = Scrub::start(place.data(), pace, disk.bell()).unwrap();
    let data = place.data().display().to_string();
    let open = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let names = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        let names = names.map(|name| name.display().to_string());
        names.filter(|name| name.starts_with(&data) && name.contains(".log")).count()
    };
    let began = Instant::now();
    while scrub.progress().percent == 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "it reads nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
    // What the disk itself writes to, and what is read.
    assert!(open() <= 2, "{} segments are held open", open());
    let (mut batch, snapshot) = (Batch::default(), 1);
    let (position, hash, bytes) = (log.position, log.hash, b"state".as_slice());
    let part = Part { snapshot, number: 0, position, hash, is_first: true, is_last: true, bytes };
    batch.part(&part).unwrap();
    disk.write(batch).unwrap();
    wait(&mut disk).unwrap();
    // The pass in which segments went ends without a finding, and the next one comes to its end.
    while scrub.progress().passes == 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "no pass came to its end");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(scrub.progress().damages, 0, "{:?}", scrub.progress().damage);
    drop(scrub);
    end(disk, &place);
}

#[test]
fn a_directory_of_other_files_is_refused_and_left_as_it_was() {
    let place = Place::new("foreign");
    std::fs::create_dir_all(place.data().join("lost+found")).unwrap();
    std::fs::write(place.data().join("hosts"), "127.0.0.1 localhost\n").unwrap();
    let error = Directory::open_or_set_aside(&place.data(), NODE, STORAGE).unwrap_err();
    let data = place.data().display().to_string();
    let wanted = format!("{data} holds other files: give replica 2 a directory of its own");
    assert_eq!(error.to_string(), wanted);
    assert!(!place.data().join("lock").exists());
    std::fs::remove_file(place.data().join("hosts")).unwrap();
    assert!(Directory::open(&place.data(), NODE, STORAGE).is_ok());
    // What a replica left that ended before it wrote anything.
    assert!(Directory::open(&place.data(), NODE, STORAGE).is_ok());
}
