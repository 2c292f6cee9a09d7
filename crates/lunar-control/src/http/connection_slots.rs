//! Counts connections by address and selects the one that is closed for a new one, so that idle
//! connections do not keep others out.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};

/// The connections of a server.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    all_max: usize,
    each_max: usize,
    table: Mutex<Table>,
    /// Notified when there may be a free slot.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    /// Connections by number, in the order of their arrival.
    slots: BTreeMap<u64, Entry>,
    /// The number or event number assigned last.
    last: u64,
}

#[derive(Debug)]
struct Entry {
    /// Network of the peer; `None` for a unix socket, to which the limit of an address does not
    /// apply.
    network: Option<IpAddr>,
    state: RequestState,
    close: oneshot::Sender<()>,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum RequestState {
    /// No complete request head has arrived since this event number.
    AwaitsHead(u64),
    /// Number of requests that are being answered.
    Answers(usize),
}

/// A connection's slot, released when dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    id: u64,
}

/// Guard of a request that is being answered; until it is dropped, its connection is not closed for
/// a new one.
#[derive(Debug)]
pub(super) struct AnswerGuard(Arc<ConnectionSlot>);

impl ConnectionSlots {
    pub(super) fn new(all_max: usize, each_max: usize) -> Arc<Self> {
        Arc::new(Self { all_max, each_max, table: Mutex::default(), changed: Notify::new() })
    }

    /// Waits until there is a slot for a new connection.
    pub(super) async fn wait_for_slot(&self) {
        loop {
            let changed = self.changed.notified();
            let has_slot = {
                let table = self.table();
                table.slots.len() < self.all_max || table.oldest(|_| true).is_some()
            };
            if has_slot {
                return;
            }
            changed.await;
        }
    }

    /// Takes a slot for a new connection; also returns a receiver that fires when the connection
    /// has to close for another one. If all slots, or those of the address (127.0.0.0/8 counts as
    /// one, as does an IPv6 /64), are taken, closes the connection that has awaited a complete head
    /// for the longest time. Returns `None` if all connections of the address are answering
    /// requests.
    pub(super) fn take(
        self: &Arc<Self>,
        address: Option<IpAddr>,
    ) -> Option<(ConnectionSlot, oneshot::Receiver<()>)> {
        let network = address.map(network);
        let mut table = self.table();
        let is_of_network = |entry: &Entry| network.is_some() && entry.network == network;
        if table.slots.values().filter(|entry| is_of_network(entry)).count() >= self.each_max {
            let oldest = table.oldest(is_of_network)?;
            table.close(oldest);
        } else if table.slots.len() >= self.all_max
            && let Some(oldest) = table.oldest(|_| true)
        {
            table.close(oldest);
        }
        let id = table.next();
        let (close, closed) = oneshot::channel();
        table.slots.insert(id, Entry { network, state: RequestState::AwaitsHead(id), close });
        Some((ConnectionSlot { slots: Arc::clone(self), id }, closed))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn oldest(&self, is_counted: impl Fn(&Entry) -> bool) -> Option<u64> {
        let awaiting = self.slots.iter().filter_map(|(id, entry)| match entry.state {
            RequestState::AwaitsHead(since) if is_counted(entry) => Some((since, *id)),
            _ => None,
        });
        awaiting.min().map(|(_, id)| id)
    }

    fn close(&mut self, id: u64) {
        if let Some(entry) = self.slots.remove(&id) {
            let _ = entry.close.send(()); // fails if the connection is ending anyway
        }
    }
}

impl ConnectionSlot {
    /// Records that a complete request head has arrived, which is answered until the guard is
    /// dropped.
    pub(super) fn begin_answer(self: &Arc<Self>) -> AnswerGuard {
        if let Some(entry) = self.slots.table().slots.get_mut(&self.id) {
            entry.state = match entry.state {
                RequestState::AwaitsHead(_) => RequestState::Answers(1),
                RequestState::Answers(count) => RequestState::Answers(count + 1),
            };
        }
        AnswerGuard(Arc::clone(self))
    }
}

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        let mut table = self.0.slots.table();
        let now = table.next();
        if let Some(entry) = table.slots.get_mut(&self.0.id) {
            entry.state = match entry.state {
                RequestState::Answers(count) if count > 1 => RequestState::Answers(count - 1),
                _ => RequestState::AwaitsHead(now),
            };
        }
        drop(table);
        self.0.slots.changed.notify_one();
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.table().slots.remove(&self.id);
        self.slots.changed.notify_one();
    }
}

/// The network of one host: an IPv4 address, an IPv6 /64, or all loopback addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(ip) if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Waker};

    type Slot = (Arc<ConnectionSlot>, oneshot::Receiver<()>);

    fn take(slots: &Arc<ConnectionSlots>, address: &str) -> Option<Slot> {
        let taken = slots.take(Some(address.parse().unwrap()));
        taken.map(|(slot, closed)| (Arc::new(slot), closed))
    }

    fn is_closed(slot: &mut Slot) -> bool {
        slot.1.try_recv().is_ok()
    }

    fn is_ready(future: Pin<&mut impl Future<Output = ()>>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Goal: when an address has used up its share, its oldest connection that awaits a head is
    /// closed, or the new one is refused; connections of other addresses are unaffected, and
    /// released slots are free.
    #[test]
    fn connections_of_one_address_are_limited() {
        let slots = ConnectionSlots::new(100, 2);
        let mut one = take(&slots, "2001:db8::1").unwrap();
        let mut two = take(&slots, "2001:db8::2").unwrap();
        let mut other = take(&slots, "2001:db8:0:1::1").unwrap();
        let answer = one.0.begin_answer();
        let three = take(&slots, "2001:db8::3").unwrap();
        assert!(is_closed(&mut two) && !is_closed(&mut one) && !is_closed(&mut other));
        let second_answer = three.0.begin_answer();
        assert!(take(&slots, "2001:db8::4").is_none(), "both answer");
        drop(answer);
        assert!(take(&slots, "2001:db8::4").is_some() && is_closed(&mut one));
        drop((second_answer, one, two, three, other));
        assert!(slots.table().slots.is_empty());
    }

    /// Fault: connections from five loopback addresses that sent nothing took all slots.
    #[test]
    fn loopback_is_one_address() {
        let slots = ConnectionSlots::new(8, 2);
        let mut first = take(&slots, "127.0.0.1").unwrap();
        let held = [take(&slots, "::ffff:127.0.0.2"), take(&slots, "127.255.255.254")];
        assert!(is_closed(&mut first));
        assert_eq!(slots.table().slots.len(), 2);
        drop(held);
    }

    /// Goal: when all slots are taken, the connection that has awaited a head for the longest time
    /// is closed; if all answer requests, a new one waits.
    #[test]
    fn the_oldest_connection_that_awaits_a_head_is_closed() {
        let slots = ConnectionSlots::new(3, 3);
        let [mut a, mut b] = ["192.0.2.1", "192.0.2.2"].map(|one| take(&slots, one).unwrap());
        let (local, _closed) = slots.take(None).unwrap();
        let local = Arc::new(local);
        let answer_local = local.begin_answer();
        drop(a.0.begin_answer());
        let mut c = take(&slots, "192.0.2.3").unwrap();
        assert!(is_closed(&mut b) && !is_closed(&mut a), "it has had an answer since");
        let answers = [a.0.begin_answer(), c.0.begin_answer()];
        let overlapping = c.0.begin_answer();
        let mut waiting = pin!(slots.wait_for_slot());
        assert!(!is_ready(waiting.as_mut()), "all answer");
        drop(overlapping);
        assert!(!is_ready(waiting.as_mut()), "one connection continues");
        drop(answers);
        assert!(is_ready(waiting));
        assert!(!is_closed(&mut a) && !is_closed(&mut c));
        drop((answer_local, local, a, b, c));
        assert!(slots.table().slots.is_empty());
    }
}
