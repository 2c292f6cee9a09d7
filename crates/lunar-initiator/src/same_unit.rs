//! Checks that a unit is still the one that was opened.

use crate::commands::{Capacity, Designator, Identity, Unit};
use crate::{Error, ErrorKind};

/// Properties that identify a unit and must not change while a disk is open.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Fingerprint {
    /// Designators of the unit itself, sorted. SPC-4 §7.8.6.
    designators: Vec<Designator>,
    /// Vendor, product and serial number, used when the unit has no designators.
    product: Option<(String, String, Option<String>)>,
    pub(crate) block_bytes: u32,
    pub(crate) block_count: u64,
}

impl Fingerprint {
    /// Reads the designators, and the serial number if there are none.
    pub(crate) async fn of(
        unit: &Unit,
        identity: &Identity,
        capacity: &Capacity,
    ) -> Result<Self, Error> {
        let designators = of_the_unit(unit.designators().await?);
        let product = if designators.is_empty() {
            let serial = unit.serial_number().await?;
            Some((identity.vendor.clone(), identity.product.clone(), serial))
        } else {
            None
        };
        let (block_bytes, block_count) = (capacity.block_bytes, capacity.block_count);
        Ok(Self { designators, product, block_bytes, block_count })
    }

    /// Fingerprint of a unit with these designators.
    pub(crate) fn by_designators(all: Vec<Designator>, block_bytes: u32, block_count: u64) -> Self {
        Self { designators: of_the_unit(all), product: None, block_bytes, block_count }
    }

    /// True if the unit has designators of its own.
    pub(crate) fn has_designators(&self) -> bool {
        !self.designators.is_empty()
    }

    /// Compares the unit with one that has these designators.
    ///
    /// # Errors
    /// `Changed` when the designators of the unit itself differ.
    pub(crate) fn check_designators(&self, all: Vec<Designator>, name: &str) -> Result<(), Error> {
        let now = Self { designators: of_the_unit(all), product: None, ..self.clone() };
        self.check(&now, self.block_count, name)
    }

    /// Compares the unit with `now`, its current properties; `block_count` is the size in use.
    ///
    /// # Errors
    /// `Changed` when `now` is another unit, has another block length or has shrunk.
    pub(crate) fn check(&self, now: &Self, block_count: u64, name: &str) -> Result<(), Error> {
        let changed = |what: String| {
            Err(Error::new(ErrorKind::Changed, format!("{name}: {what}"))
                .hint("nothing was read or written; reopen the disk if the change is intended"))
        };
        if (&now.designators, &now.product) != (&self.designators, &self.product) {
            return changed(format!(
                "a different unit responds: {} instead of {}",
                now.known_by(),
                self.known_by()
            ));
        }
        if now.block_bytes != self.block_bytes {
            let (was, is) = (self.block_bytes, now.block_bytes);
            return changed(format!("the block size changed from {was} to {is} bytes"));
        }
        if now.block_count < block_count {
            let is = now.block_count;
            return changed(format!("the disk has shrunk from {block_count} to {is} blocks"));
        }
        Ok(())
    }

    fn known_by(&self) -> String {
        match (&*self.designators, &self.product) {
            ([first, ..], _) => format!("`{}`", first.text),
            ([], Some((vendor, product, serial))) => {
                format!("`{vendor} {product} {}`", serial.as_deref().unwrap_or("without number"))
            }
            ([], None) => "nothing".to_owned(),
        }
    }
}

/// The designators of the unit itself, sorted.
fn of_the_unit(mut designators: Vec<Designator>) -> Vec<Designator> {
    const OF_THE_UNIT: u8 = 0;
    designators.retain(|designator| designator.association == OF_THE_UNIT);
    designators.sort();
    designators
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(text: &str, block_bytes: u32, block_count: u64) -> Fingerprint {
        let designator = Designator { association: 0, kind: 3, text: text.to_owned() };
        Fingerprint { designators: vec![designator], product: None, block_bytes, block_count }
    }

    /// Goal: designators that are read later are those of the opened unit, whatever their order;
    /// those of ports do not count.
    #[test]
    fn designators_read_later() {
        let designator =
            |association, text: &str| Designator { association, kind: 3, text: text.to_owned() };
        let mut opened = disk("naa1", 512, 8);
        opened.designators.push(designator(0, "naa2"));
        let named = |texts: &[&str]| {
            let of_unit = texts.iter().map(|text| designator(0, text));
            opened.check_designators(of_unit.chain([designator(1, "port")]).collect(), "x")
        };
        assert!(named(&["naa2", "naa1"]).is_ok());
        for other in [&["naa1"][..], &["naa1", "naa3"], &[]] {
            assert_eq!(named(other).unwrap_err().kind, ErrorKind::Changed);
        }
    }

    fn unnamed(serial: Option<&str>) -> Fingerprint {
        let product = ("a".to_owned(), "b".to_owned(), serial.map(str::to_owned));
        let known = disk("", 512, 8);
        Fingerprint { designators: Vec::new(), product: Some(product), ..known }
    }

    /// Goal: only the same disk, of the same size or larger, is accepted.
    #[test]
    fn another_disk_is_refused() {
        let opened = disk("naa1", 512, 1000);
        assert!(opened.check(&opened, 1000, "x").is_ok());
        assert!(
            opened.check(&disk("naa1", 512, 1001), 1000, "x").is_ok(),
            "a larger unit is accepted"
        );
        for (other, part) in [
            (disk("naa2", 512, 1000), "`naa2` instead of `naa1`"),
            (disk("naa1", 4096, 1000), "changed from 512 to 4096 bytes"),
            (disk("naa1", 512, 999), "shrunk from 1000 to 999 blocks"),
            (unnamed(Some("1")), "`a b 1` instead"),
        ] {
            let error = opened.check(&other, 1000, "x").unwrap_err();
            assert_eq!(error.kind, ErrorKind::Changed);
            assert!(error.what.contains(part), "{error}");
        }
        assert!(unnamed(Some("1")).check(&unnamed(Some("1")), 8, "x").is_ok());
        assert!(unnamed(Some("1")).check(&unnamed(Some("2")), 8, "x").is_err());
        let shrunk = disk("naa1", 512, 1001);
        assert!(opened.check(&shrunk, 1002, "x").is_err(), "it had grown further");
        assert!(unnamed(None).check(&unnamed(Some("2")), 8, "x").is_err());
    }
}
