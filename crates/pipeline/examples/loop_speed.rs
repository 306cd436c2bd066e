//! What the data-plane loop costs per packet: packets in memory, records into
//! blocks whose writes go nowhere; beside memcpy of the same packets, in turns.
//!
//!     cargo run --release -p strata-pipeline --example loop_speed -- TRACE.pcap [MODEL.json] [MODE]
//!
//! Prints JSON: medians in ns per packet and Gb/s. The worker has one core; the
//! writer thread, which seals blocks, has another.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a program for developers"
)]

use std::any::Any;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use strata_capture::{Input, InputOptions, Interface, Meta, Next, PacketRef};
use strata_classify::Model;
use strata_pipeline::{Mode, Worker, WorkerOptions};
use strata_store::{About, Disk, DiskFile, Recorder, RecorderOptions};
use strata_wire::{LinkType, TunnelKey};

const ROUNDS: usize = 7;
/// Packets that are handed over at a time.
const BATCH: usize = 256;

/// A disk that forgets.
struct NoDisk;

struct NoFile(AtomicU64);

impl Disk for NoDisk {
    fn create(&self, _: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(NoFile(AtomicU64::new(0))))
    }
    fn open(&self, name: &str, _: bool) -> io::Result<Box<dyn DiskFile>> {
        Err(io::Error::other(name.to_owned()))
    }
    fn replace(&self, _: &str, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn exists(&self, _: &str) -> bool {
        false
    }
    fn lock(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        Ok(Some(Box::new(())))
    }
    fn display(&self, name: &str) -> String {
        name.to_owned()
    }
}

impl DiskFile for NoFile {
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        Ok(0)
    }
    fn write_at(&mut self, bytes: &[u8], _: u64) -> io::Result<()> {
        *self.0.get_mut() += bytes.len() as u64;
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn set_len(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn size(&self) -> io::Result<u64> {
        Ok(0)
    }
}

/// A capture in memory, one packet behind the other, each on its own cache line
/// as a ring would have them.
struct Trace {
    bytes: Vec<u8>,
    packets: Vec<(usize, usize, u64, u32)>,
}

impl Trace {
    fn read(path: &Path) -> Self {
        let mut input = Input::open(&[path.to_owned()], &InputOptions::default()).unwrap();
        let mut trace = Self {
            bytes: Vec::new(),
            packets: Vec::new(),
        };
        loop {
            match input.advance().unwrap() {
                Next::End => return trace,
                Next::Meta(_) => {}
                Next::Packets => {
                    for packet in input.batch() {
                        let start = trace.bytes.len().next_multiple_of(64);
                        trace.bytes.resize(start, 0);
                        trace.bytes.extend_from_slice(packet.data);
                        let entry = (start, packet.data.len(), packet.ts_ns, packet.wire_len);
                        trace.packets.push(entry);
                    }
                }
            }
        }
    }

    fn refs(&self) -> Vec<PacketRef<'_>> {
        let packets = self.packets.iter();
        packets
            .map(|&(start, len, ts_ns, wire_len)| PacketRef {
                ts_ns,
                interface: 0,
                wire_len,
                data: &self.bytes[start..start + len],
                options: &[],
                has_timestamp: true,
            })
            .collect()
    }
}

/// Seconds for the whole trace through a new worker.
fn run(packets: &[PacketRef<'_>], model: &Model, mode: &Mode) -> (f64, Worker) {
    let about = About {
        program: String::new(),
        inputs: Vec::new(),
        filter: String::new(),
        mode: mode.name.clone(),
        model: model.name.clone(),
        model_json: Vec::new(),
        classes: model.class_names(),
        hash_seed: [1, 2],
    };
    let options = WorkerOptions {
        modes: vec![mode.clone()],
        filter: None,
        tunnel_key: TunnelKey::Inner,
        hash_seed: [1, 2],
        sampling_seed: 3,
    };
    let (recorder, sink) =
        Recorder::start(Arc::new(NoDisk), RecorderOptions::default(), &about).unwrap();
    let mut worker = Worker::new(model, options, sink).unwrap();
    let interface = Interface::new(LinkType::ETHERNET, 0);
    worker.meta(Meta::Interface { id: 0, interface }).unwrap();
    let begun = Instant::now();
    for batch in packets.chunks(BATCH) {
        worker.batch(batch).unwrap();
    }
    let seconds = begun.elapsed().as_secs_f64();
    worker.finish().unwrap();
    recorder.finish(&worker.ledger(), Vec::new()).unwrap();
    (seconds, worker)
}

/// Seconds to copy every packet into a buffer that goes round within 16 MiB.
fn copy(packets: &[PacketRef<'_>], buffer: &mut [u8]) -> f64 {
    let begun = Instant::now();
    let mut at = 0;
    for packet in packets {
        if at + packet.data.len() > buffer.len() {
            at = 0;
        }
        buffer[at..at + packet.data.len()].copy_from_slice(packet.data);
        at += packet.data.len();
    }
    black_box(&buffer);
    begun.elapsed().as_secs_f64()
}

/// Seconds to read one byte of every packet's first two cache lines.
fn touch(packets: &[PacketRef<'_>]) -> f64 {
    let begun = Instant::now();
    let mut sum = 0_u64;
    for packet in packets {
        let data = packet.data;
        sum += u64::from(data[0]) + u64::from(data[data.len().min(65) - 1]);
    }
    black_box(sum);
    begun.elapsed().as_secs_f64()
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let trace = arguments.next().unwrap();
    let model = arguments.next();
    let model = model.unwrap_or_else(|| "models/default.json".into());
    let mode = arguments.next().unwrap_or_else(|| "default".into());
    let rounds = arguments.next().map_or(ROUNDS, |n| n.parse().unwrap());
    let model = Model::from_json(&std::fs::read(model).unwrap()).unwrap();
    let mode = Mode::by_name(&mode, &BTreeMap::new()).unwrap();
    let trace = Trace::read(Path::new(&trace));
    let packets = trace.refs();
    let bytes: usize = packets.iter().map(|packet| packet.data.len()).sum();
    let mut buffer = vec![1; 16 << 20];
    let mut times = [const { Vec::new() }; 3];
    let mut last = None;
    for _ in 0..rounds {
        let (seconds, worker) = run(&packets, &model, &mode);
        times[0].push(seconds);
        times[1].push(copy(&packets, &mut buffer));
        times[2].push(touch(&packets));
        last = Some(worker);
    }
    let worker = last.unwrap();
    let [road, memcpy, touch] = &mut times;
    let count = packets.len() as f64;
    let ns = |seconds: f64| seconds * 1e9 / count;
    let gbits = |seconds: f64| bytes as f64 * 8.0 / seconds / 1e9;
    let (road, memcpy, touch) = (median(road), median(memcpy), median(touch));
    let ledger = worker.ledger();
    println!(
        "{{\"packets\": {}, \"mean_bytes\": {:.1}, \"logged_share\": {:.4}, \"without_bucket\": {:.4}, \
         \"loop_ns\": {:.1}, \"loop_mpps\": {:.2}, \"loop_gbits\": {:.1}, \
         \"memcpy_ns\": {:.1}, \"memcpy_gbits\": {:.1}, \"touch_ns\": {:.1}, \"loop_over_memcpy\": {:.3}}}",
        packets.len(),
        bytes as f64 / count,
        ledger.logged.bytes as f64 / bytes as f64,
        worker.pressure().without_bucket as f64 / count,
        ns(road),
        count / road / 1e6,
        gbits(road),
        ns(memcpy),
        gbits(memcpy),
        ns(touch),
        memcpy / road,
    );
}
