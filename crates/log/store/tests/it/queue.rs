//! Blocks in flight to a file, by each way of writing them.

use strata_store::{Disk, RealDisk, WriteQueue};
use strata_testkit_disk::SimDisk;

fn block(fill: u8) -> Vec<u8> {
    vec![fill; 8192]
}

fn write_all(disk: &dyn Disk, in_flight: usize, register: bool) -> Vec<u8> {
    let mut file = disk.create("blocks").unwrap();
    let mut queue = WriteQueue::<Vec<u8>>::new(in_flight);
    let memory = vec![7; 8192];
    if register {
        queue.register(&[&memory]);
    }
    let mut back = Vec::new();
    for n in 0..100_u8 {
        if !queue.has_room() {
            let (block, outcome) = queue.complete().unwrap();
            outcome.unwrap();
            back.push(block[0]);
        }
        queue.submit(file.as_mut(), block(n), u64::from(n) * 8192);
    }
    while let Some((block, outcome)) = queue.complete() {
        outcome.unwrap();
        back.push(block[0]);
    }
    assert!(queue.is_empty() && queue.try_complete().is_none());
    assert_eq!(back, (0..100).collect::<Vec<u8>>());
    let mut content = vec![0; 100 * 8192 + 1];
    let read = file.read_at(&mut content, 0).unwrap();
    content.truncate(read);
    content
}

#[test]
fn blocks_come_back_in_order_and_are_in_the_file_whatever_the_way() {
    let expected: Vec<u8> = (0..100).flat_map(block).collect();
    for (in_flight, register) in [(1, false), (2, true), (16, false), (16, true)] {
        let dir = tempfile::tempdir().unwrap();
        let real = RealDisk::create_dir(dir.path()).unwrap();
        assert!(write_all(&real, in_flight, register) == expected);
        assert!(write_all(&SimDisk::new(), in_flight, register) == expected);
    }
}

#[test]
fn a_write_that_fails_says_so_in_its_turn_and_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::create_dir(dir.path()).unwrap();
    let mut good = disk.create("good").unwrap();
    let mut bad = disk.open("good", false).unwrap();
    for in_flight in [1, 4] {
        let mut queue = WriteQueue::<Vec<u8>>::new(in_flight);
        let mut outcomes = Vec::new();
        for turn in 0..3 {
            let file = if turn == 1 { &mut bad } else { &mut good };
            if !queue.has_room() {
                outcomes.extend(queue.complete());
            }
            queue.submit(file.as_mut(), block(turn), u64::from(turn) * 8192);
        }
        while let Some(done) = queue.complete() {
            outcomes.push(done);
        }
        let failed: Vec<bool> = outcomes.iter().map(|(_, o)| o.is_err()).collect();
        assert_eq!(failed, [false, true, false]);
    }
}
