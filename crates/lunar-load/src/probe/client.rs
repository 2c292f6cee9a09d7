//! The client side of a probe: sends requests and measures.

use super::server::{EXCHANGE, PIECE, STREAM_DOWN, STREAM_UP, header};
use super::{HEADER_BYTES, ProbeShape, SILENCE_MAX, STREAM_TIME};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Exchanges requests over all connections for `time`; returns the number of answers and the time
/// taken.
pub(super) fn exchange(
    to: SocketAddr,
    shape: ProbeShape,
    time: Duration,
) -> io::Result<(u64, Duration)> {
    let connections = shape.connections.clamp(1, shape.depth.max(1));
    let share = |number: u16| {
        let (each, more) = (shape.depth / connections, shape.depth % connections);
        usize::from(each + u16::from(number < more)).max(1)
    };
    let on_one = |number| exchange_on_one(connect(to)?, shape, share(number), time);
    on_all(connections, on_one)
}

/// Streams data over all connections for `time`, in the direction of the workload; returns the
/// number of bytes that arrived and the time taken.
pub(super) fn stream(
    to: SocketAddr,
    shape: ProbeShape,
    time: Duration,
) -> io::Result<(u64, Duration)> {
    // All connections share one time window, so that a connection that is idle while the others
    // stream does not measure alone later.
    let from = Instant::now() + STREAM_TIME;
    on_all(shape.connections.max(1), |_| match shape.writes {
        true => send(connect(to)?, from, from + time),
        false => receive(connect(to)?, from, from + time),
    })
}

/// Returns the sum of the threads' counts, and the longest of their times.
fn on_all(
    connections: u16,
    one: impl Fn(u16) -> io::Result<(u64, Duration)> + Sync,
) -> io::Result<(u64, Duration)> {
    let one = &one;
    std::thread::scope(|scope| {
        let threads: Vec<ScopedJoinHandle<'_, _>> =
            (0..connections).map(|number| scope.spawn(move || one(number))).collect();
        let (mut sum, mut longest) = (0, Duration::ZERO);
        for thread in threads {
            let lost = || io::Error::other("a probe's thread panicked");
            let (count, took) = thread.join().map_err(|_| lost())??;
            (sum, longest) = (sum + count, longest.max(took));
        }
        Ok((sum, longest.max(Duration::from_nanos(1))))
    })
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect_timeout(&to, SILENCE_MAX)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(SILENCE_MAX))?;
    socket.set_write_timeout(Some(SILENCE_MAX))?;
    Ok(socket)
}

fn exchange_on_one(
    mut socket: TcpStream,
    shape: ProbeShape,
    depth: usize,
    time: Duration,
) -> io::Result<(u64, Duration)> {
    let (up, down) = if shape.writes { (shape.io_bytes, 0) } else { (0, shape.io_bytes) };
    let mut request = header(EXCHANGE, up, down).to_vec();
    request.resize(HEADER_BYTES + up as usize, 0);
    let answer = HEADER_BYTES + down as usize;
    let mut buffer = vec![0; PIECE];
    // Requests without data are sent together in one call; requests with data are large enough for
    // a call each.
    let batch = if up == 0 { depth } else { 1 };
    let requests = request.repeat(batch);
    let send = |socket: &mut TcpStream, mut count: usize| -> io::Result<()> {
        while count > 0 {
            let piece = count.min(batch);
            socket.write_all(&requests[..piece * request.len()])?;
            count -= piece;
        }
        Ok(())
    };
    let begin = Instant::now();
    send(&mut socket, depth)?;
    let (mut answers, mut part) = (0, 0);
    loop {
        let read = socket.read(&mut buffer)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        part += read;
        let whole = part / answer;
        part %= answer;
        answers += whole as u64;
        let took = begin.elapsed();
        if took >= time && answers > 0 {
            return Ok((answers, took));
        }
        // Send a request for each answer.
        send(&mut socket, whole)?;
    }
}

/// Returns the bytes received between two points in time.
fn receive(mut socket: TcpStream, from: Instant, to: Instant) -> io::Result<(u64, Duration)> {
    let mut buffer = vec![0; PIECE];
    socket.write_all(&header(STREAM_DOWN, 0, 0))?;
    let mut bytes = 0;
    loop {
        let read = socket.read(&mut buffer)?;
        let now = Instant::now();
        match read {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ if now > to => return Ok((bytes, to - from)),
            _ if now < from => {}
            read => bytes += read as u64,
        }
    }
}

/// Returns the bytes sent from one point in time to another, and the time until they arrived.
fn send(mut socket: TcpStream, from: Instant, to: Instant) -> io::Result<(u64, Duration)> {
    let zeroes = vec![0; PIECE];
    socket.write_all(&header(STREAM_UP, 0, 0))?;
    let mut before = 0;
    while Instant::now() < from {
        socket.write_all(&zeroes)?;
        before += zeroes.len() as u64;
    }
    while Instant::now() < to {
        socket.write_all(&zeroes)?;
    }
    socket.shutdown(Shutdown::Write)?;
    let mut bytes = [0; 8];
    socket.read_exact(&mut bytes)?;
    Ok((u64::from_be_bytes(bytes).saturating_sub(before), from.elapsed()))
}
