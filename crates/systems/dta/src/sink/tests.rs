//! Operations that wait, against operations done at once.

use super::*;

#[test]
fn operations_are_done_in_order_and_none_is_left_waiting() {
    let mut memory = vec![0; 8192];
    let mut naive = memory.clone();
    {
        let mut local = Local::new(&mut memory);
        for n in 0..500_u64 {
            let at = n * 37 % 100 * 8;
            local.write(at, &n.to_le_bytes(), &[]);
            let start = usize::try_from(at).unwrap();
            naive[start..start + 8].copy_from_slice(&n.to_le_bytes());
            let long = [n.to_le_bytes(); 4].concat();
            local.write(4096 + at * 4, &long, &[]);
            naive[4096 + start * 4..][..32].copy_from_slice(&long);
            local.fetch_add(2048 + at, n, &[]);
            let at = 2048 + start;
            (&mut naive[..]).add(at, n);
        }
        let operations = Operations {
            writes: 1000,
            additions: 500,
        };
        assert_eq!(local.operations(), operations);
    }
    assert_eq!(memory, naive);
}

#[test]
#[should_panic(expected = "lies in the memory")]
fn nothing_is_written_beyond_the_memory() {
    let mut memory = vec![0; 64];
    Local::new(&mut memory).write(60, &[1; 8], &[]);
}
