//! Copies between the host and the GPU through pinned memory.

use super::driver::{Mark, Pinned, Stream};
use crate::error::GpuError;

/// Bytes of a small piece, and how many of them there are.
const SMALL: usize = 4 << 10;
const SMALL_COUNT: usize = 64;
/// Bytes of a large piece; while one is copied to the GPU, the other is filled.
const LARGE: usize = 32 << 20;
const LARGE_COUNT: usize = 2;
/// Bytes of the piece that reads go through.
const BACK: usize = 4 << 20;
/// Threads that fill a large piece: the pages of a mapped file come in faster when several ask for them.
const FILLERS: usize = 8;

/// A piece and the end of its last copy.
struct Piece {
    memory: Pinned,
    done: Mark,
}

impl Piece {
    fn new(bytes: usize) -> Result<Piece, GpuError> {
        Ok(Piece {
            memory: Pinned::new(bytes)?,
            done: Mark::new(false)?,
        })
    }
}

/// Pieces that are used in turn.
struct Ring {
    pieces: Vec<Piece>,
    next: usize,
    bytes: usize,
    count: usize,
}

impl Ring {
    fn new(bytes: usize, count: usize) -> Ring {
        Ring {
            pieces: Vec::new(),
            next: 0,
            bytes,
            count,
        }
    }

    /// Copies at most a piece.
    fn upload(&mut self, stream: &Stream, to: u64, from: &[u8]) -> Result<(), GpuError> {
        if self.next == self.pieces.len() {
            self.pieces.push(Piece::new(self.bytes)?);
        }
        let piece = &mut self.pieces[self.next];
        self.next = (self.next + 1) % self.count;
        piece.done.wait()?;
        fill(&mut piece.memory.bytes()[..from.len()], from);
        stream.upload(to, &piece.memory.bytes()[..from.len()])?;
        piece.done.set(stream)
    }
}

/// Copies, with several threads where it pays.
fn fill(into: &mut [u8], from: &[u8]) {
    const WORTH_A_THREAD: usize = 1 << 20;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(FILLERS);
    let share = from.len().div_ceil(threads).max(WORTH_A_THREAD);
    if share >= from.len() {
        into.copy_from_slice(from);
        return;
    }
    std::thread::scope(|scope| {
        for (into, from) in into.chunks_mut(share).zip(from.chunks(share)) {
            scope.spawn(move || into.copy_from_slice(from));
        }
    });
}

/// The pinned memory of a device.
pub struct Staging {
    small: Ring,
    large: Ring,
    back: Option<Pinned>,
}

impl Staging {
    /// Nothing is allocated until it is needed.
    pub fn new() -> Staging {
        Staging {
            small: Ring::new(SMALL, SMALL_COUNT),
            large: Ring::new(LARGE, LARGE_COUNT),
            back: None,
        }
    }

    /// Queues a copy to the GPU; `from` may be changed afterwards.
    pub fn upload(&mut self, stream: &Stream, to: u64, from: &[u8]) -> Result<(), GpuError> {
        if from.len() <= SMALL {
            return self.small.upload(stream, to, from);
        }
        let mut to = to;
        for part in from.chunks(LARGE) {
            self.large.upload(stream, to, part)?;
            to += part.len() as u64;
        }
        Ok(())
    }

    /// Copies from the GPU, after everything that is queued.
    pub fn download(&mut self, stream: &Stream, into: &mut [u8], from: u64) -> Result<(), GpuError> {
        let back = match &mut self.back {
            Some(back) => back,
            none => none.insert(Pinned::new(BACK)?),
        };
        let mut from = from;
        for part in into.chunks_mut(BACK) {
            stream.download(&mut back.bytes()[..part.len()], from)?;
            stream.wait()?;
            part.copy_from_slice(&back.bytes()[..part.len()]);
            from += part.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::fill;

    #[test]
    fn every_byte_is_copied_once() {
        for len in [0, 1, (1 << 20) - 1, (1 << 20) + 1, (9 << 20) + 3] {
            let from: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
            let mut into = vec![0; len];
            fill(&mut into, &from);
            assert!(into == from, "{len} bytes");
        }
    }
}
