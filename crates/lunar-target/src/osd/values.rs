//! Values of attributes: those that the store computes, and those that were set.

use super::attributes::quota;
use super::{OsdIdentity, sense::OsdFailure};
use lunar_osd::{AttributeId, ObjectId, ObjectInformation, ObjectKind, ObjectStore, QuotaKind};
use lunar_scsi::osd::pages::{
    self, AttributeLength, PAGES_OF_OWNER, PageOwner, StandardAttribute, StandardPage,
};
use lunar_scsi::osd::{AttributeName, ObjectType, OsdTime, OsdVersion};
use lunar_wire::Field;

/// Number of attributes that are read from the store at once.
const ATTRIBUTES_PER_READ: usize = 256;

/// Maximum number of attributes of a range that are listed one by one.
const LISTED_RANGE_MAX: u32 = 16;

/// The results of the current command that its page shows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CommandResults {
    /// The first byte of the appended bytes.
    pub(super) append_start: u64,
    /// Used bytes of the object before the command.
    pub(super) used_before: u64,
}

/// An object whose attributes are read.
pub(super) struct AttributeReader<'a> {
    pub(super) store: &'a ObjectStore,
    pub(super) identity: &'a OsdIdentity,
    pub(super) version: OsdVersion,
    pub(super) results: CommandResults,
    /// Milliseconds since 1970-01-01 UTC.
    pub(super) time: u64,
    pub(super) information: ObjectInformation,
}

/// Returns the pages that objects of a kind have.
pub(super) const fn page_owner(kind: ObjectKind) -> PageOwner {
    match kind {
        ObjectKind::Root => PageOwner::Root,
        ObjectKind::Partition => PageOwner::Partition,
        ObjectKind::Collection => PageOwner::Collection,
        ObjectKind::User => PageOwner::User,
    }
}

/// Returns the code of a kind.
pub(super) const fn object_type(kind: ObjectKind) -> ObjectType {
    match kind {
        ObjectKind::Root => ObjectType::ROOT,
        ObjectKind::Partition => ObjectType::PARTITION,
        ObjectKind::Collection => ObjectType::COLLECTION,
        ObjectKind::User => ObjectType::USER,
    }
}

/// Encodes a time in six bytes.
fn time(millis: u64) -> Vec<u8> {
    let mut bytes = vec![0; OsdTime::SIZE];
    OsdTime::from_millis(millis).put(&mut bytes);
    bytes
}

fn number(value: u64) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

impl AttributeReader<'_> {
    fn id(&self) -> ObjectId {
        self.information.id
    }

    fn owner(&self) -> PageOwner {
        page_owner(self.information.kind)
    }

    /// Returns the value of an attribute; no bytes if it is not defined.
    pub(super) async fn value(&self, name: AttributeName) -> Result<Vec<u8>, OsdFailure> {
        if name.page == self.owner().base() && name.number != 0 {
            // An entry of the directory: the identification of the page with this number.
            let page = AttributeName::new(name.number, 0);
            return match PageOwner::of(page.page) == Some(self.owner()) {
                true => self.identification(page).await,
                false => Ok(Vec::new()),
            };
        }
        if name.number == 0 {
            return self.identification(name).await;
        }
        if let Some(value) = self.computed(name) {
            return Ok(value);
        }
        if name.page == pages::USER_COLLECTIONS.page {
            let references = self.store.memberships(self.id()).await?;
            let found = references.iter().find(|(number, _)| *number == name.number);
            return Ok(found.map_or(Vec::new(), |(_, collection)| number(*collection)));
        }
        self.stored(name).await
    }

    /// Returns an attribute that was set; otherwise zeroes for one of the standard that every
    /// object has.
    async fn stored(&self, name: AttributeName) -> Result<Vec<u8>, OsdFailure> {
        let id = AttributeId::new(name.page, name.number);
        if let Some(value) = self.store.attribute(self.id(), id).await? {
            return Ok(value.to_vec());
        }
        let length = StandardAttribute::find(name).map(|attribute| attribute.length);
        match length {
            Some(AttributeLength::Fixed(bytes)) => Ok(vec![0; bytes.into()]),
            _ => Ok(Vec::new()),
        }
    }

    /// Returns the identification of a page.
    async fn identification(&self, name: AttributeName) -> Result<Vec<u8>, OsdFailure> {
        match StandardPage::find(name.page) {
            Some(page) => Ok(page.identification().to_vec()),
            None => self.stored(name).await,
        }
    }

    /// Returns the value of an attribute of the standard that nobody sets, or that has an effect on
    /// the store.
    fn computed(&self, name: AttributeName) -> Option<Vec<u8>> {
        if let Some(quota) = quota(name) {
            return Some(self.quota(name, quota));
        }
        match name.page {
            pages::CURRENT_COMMAND => self.current_command(name),
            page if page % PAGES_OF_OWNER == pages::TIMESTAMPS => self.timestamp(name),
            page if page == pages::ROOT_CLOCK.page => self.root_information(name),
            page if page % PAGES_OF_OWNER == pages::INFORMATION => self.object_information(name),
            page if page == pages::ROOT_SUPPORTED_METHODS.page => match name {
                // NOSEC.
                pages::ROOT_SUPPORTED_METHODS => Some(vec![0, 1]),
                pages::ROOT_ADJUSTABLE_CLOCK => Some(time(self.time)),
                _ => None,
            },
            _ => None,
        }
    }

    fn quota(&self, name: AttributeName, quota: QuotaKind) -> Vec<u8> {
        let quotas = &self.information.quotas;
        let limit = match quota {
            QuotaKind::ObjectLength => quotas.object_length,
            QuotaKind::Capacity => quotas.capacity,
            QuotaKind::ObjectCount => quotas.object_count,
            QuotaKind::Memberships => quotas.memberships,
            QuotaKind::PartitionCount => quotas.partition_count,
        };
        match StandardAttribute::find(name).map(|attribute| attribute.length) {
            Some(AttributeLength::Fixed(4)) => {
                u32::try_from(limit).unwrap_or(u32::MAX).to_be_bytes().to_vec()
            }
            _ => number(limit),
        }
    }

    fn timestamp(&self, name: AttributeName) -> Option<Vec<u8>> {
        StandardAttribute::find(name)?;
        let times = &self.information.times;
        match name.number {
            1 => Some(time(times.created)),
            2 => Some(time(times.attributes_accessed)),
            3 => Some(time(times.attributes_modified)),
            4 => Some(time(times.data_accessed)),
            5 => Some(time(times.data_modified)),
            _ => None,
        }
    }

    fn root_information(&self, name: AttributeName) -> Option<Vec<u8>> {
        /// Supported isolation methods: none of them isolates.
        const NO_ISOLATION: u8 = 0x40;
        let used = self.information.used_bytes;
        match name {
            pages::ROOT_SYSTEM_ID => Some(self.identity.system_id.to_vec()),
            pages::ROOT_VENDOR_ID => Some(self.identity.vendor.to_vec()),
            pages::ROOT_PRODUCT_ID => Some(self.identity.product.to_vec()),
            pages::ROOT_PRODUCT_MODEL => Some(self.identity.model.to_vec()),
            pages::ROOT_PRODUCT_REVISION => Some(self.identity.revision.to_vec()),
            pages::ROOT_SERIAL_NUMBER => Some(self.identity.serial.clone().into_bytes()),
            pages::ROOT_TOTAL_CAPACITY => {
                Some(number(used.saturating_add(self.store.free_bytes())))
            }
            pages::ROOT_USED_CAPACITY => Some(number(used)),
            pages::ROOT_PARTITION_COUNT => Some(number(self.information.contained)),
            pages::ROOT_CLOCK => Some(time(self.time)),
            pages::ROOT_SUPPORTED_ISOLATION => {
                let mut methods = vec![0; 32];
                methods[0] = NO_ISOLATION;
                Some(methods)
            }
            _ => None,
        }
    }

    fn object_information(&self, name: AttributeName) -> Option<Vec<u8>> {
        let ObjectInformation { id, length, used_bytes, contained, .. } = self.information;
        match name {
            pages::PARTITION_ID | pages::COLLECTION_PARTITION_ID | pages::USER_PARTITION_ID => {
                Some(number(id.partition))
            }
            pages::COLLECTION_ID | pages::USER_OBJECT_ID => Some(number(id.object)),
            pages::PARTITION_USED_CAPACITY
            | pages::COLLECTION_USED_CAPACITY
            | pages::USER_USED_CAPACITY => Some(number(used_bytes)),
            pages::USER_LOGICAL_LENGTH => Some(number(length)),
            pages::PARTITION_OBJECT_COUNT => Some(number(contained)),
            pages::COLLECTION_TYPE => Some(vec![pages::CollectionType::LINKED.0]),
            _ => None,
        }
    }

    fn current_command(&self, name: AttributeName) -> Option<Vec<u8>> {
        let ObjectInformation { id, kind, used_bytes, .. } = self.information;
        match name {
            pages::CURRENT_RESPONSE_INTEGRITY_VALUE => {
                Some(vec![0; self.version.integrity_value_bytes()])
            }
            pages::CURRENT_OBJECT_TYPE => Some(vec![object_type(kind).0]),
            pages::CURRENT_PARTITION_ID => Some(number(id.partition)),
            pages::CURRENT_OBJECT_ID => Some(number(id.object)),
            pages::CURRENT_APPEND_START => Some(number(self.results.append_start)),
            // In two's complement.
            pages::CURRENT_CAPACITY_CHANGE => {
                Some(number(used_bytes.wrapping_sub(self.results.used_before)))
            }
            _ => None,
        }
    }

    /// Calls `found` with the attributes that a name in a list stands for.
    pub(super) async fn expand(
        &self,
        name: AttributeName,
        mut found: impl FnMut(AttributeName, &[u8]),
    ) -> Result<(), OsdFailure> {
        let all_numbers = name.number == AttributeName::ALL_NUMBERS;
        if name.page != AttributeName::ALL_PAGES {
            if all_numbers {
                return self.expand_page(name.page, &mut found).await;
            }
            found(name, &self.value(name).await?);
            return Ok(());
        }
        for page in pages::PAGES.iter().map(|page| page.page) {
            if PageOwner::of(page) != Some(self.owner()) {
                continue;
            }
            if all_numbers {
                self.expand_page(page, &mut found).await?;
                continue;
            }
            let name = AttributeName::new(page, name.number);
            let value = self.value(name).await?;
            if !value.is_empty() {
                found(name, &value);
            }
        }
        let first = AttributeId::new(self.owner().base().saturating_add(0x1_0000), 0);
        self.scan(first, true, &mut |id, value| {
            if all_numbers || id.number == name.number {
                found(id, value);
            }
        })
        .await
    }

    /// Calls `found` with stored attributes from `first` on, of its page or of all.
    async fn scan(
        &self,
        mut first: AttributeId,
        of_all_pages: bool,
        found: &mut impl FnMut(AttributeName, &[u8]),
    ) -> Result<(), OsdFailure> {
        let (store, id) = (self.store, self.id());
        loop {
            let read = match of_all_pages {
                true => store.attributes_of_pages(id, first, ATTRIBUTES_PER_READ).await?,
                false => store.attributes(id, first, ATTRIBUTES_PER_READ).await?,
            };
            for (id, value) in &read {
                found(AttributeName::new(id.page, id.number), value);
            }
            let next = match read.last() {
                Some((last, _)) if read.len() == ATTRIBUTES_PER_READ => after(*last),
                _ => return Ok(()),
            };
            if !of_all_pages && next.page != first.page {
                return Ok(());
            }
            first = next;
        }
    }

    /// Calls `found` with the defined attributes of a page.
    async fn expand_page(
        &self,
        page: u32,
        found: &mut impl FnMut(AttributeName, &[u8]),
    ) -> Result<(), OsdFailure> {
        let mut names = vec![AttributeName::new(page, 0)];
        for attribute in pages::ATTRIBUTES.iter().filter(|attribute| attribute.first.page == page) {
            let last_index = attribute.last_number - attribute.first.number;
            if last_index < LISTED_RANGE_MAX {
                let numbers = attribute.first.number..=attribute.last_number;
                names.extend(numbers.map(|number| AttributeName::new(page, number)));
            }
        }
        if StandardPage::find(page).is_none() {
            names.clear();
        }
        if page == self.owner().base() {
            let own = pages::PAGES.iter().map(|page| page.page);
            let own = own.filter(|other| *other != page);
            let own = own.filter(|other| PageOwner::of(*other) == Some(self.owner()));
            names.extend(own.map(|other| AttributeName::new(page, other)));
        }
        for name in &names {
            let value = self.value(*name).await?;
            if !value.is_empty() {
                found(*name, &value);
            }
        }
        if page == self.owner().base() {
            return self.expand_directory(page, found).await;
        }
        if page == pages::USER_COLLECTIONS.page {
            for (index, collection) in self.store.memberships(self.id()).await? {
                found(AttributeName::new(page, index), &collection.to_be_bytes());
            }
        }
        let first = AttributeId::new(page, 0);
        let mut others = |name, value: &[u8]| {
            if !names.contains(&name) {
                found(name, value);
            }
        };
        self.scan(first, false, &mut others).await
    }

    /// Calls `found` with the directory entries of pages with an identification of their own.
    async fn expand_directory(
        &self,
        directory: u32,
        found: &mut impl FnMut(AttributeName, &[u8]),
    ) -> Result<(), OsdFailure> {
        let first = AttributeId::new(self.owner().base().saturating_add(0x1_0000), 0);
        self.scan(first, true, &mut |name, value| {
            if name.number == 0 {
                found(AttributeName::new(directory, name.page), value);
            }
        })
        .await
    }

    /// Returns the body of a page in page format; none if it has none.
    pub(super) async fn page_body(&self, page: u32) -> Result<Vec<u8>, OsdFailure> {
        let mut body = Vec::new();
        if page == pages::USER_COLLECTIONS.page {
            for (_, collection) in self.store.memberships(self.id()).await? {
                body.extend_from_slice(&collection.to_be_bytes());
            }
            return Ok(body);
        }
        for part in page_parts(self.version, page) {
            match part {
                PagePart::Zeros(bytes) => body.resize(body.len() + bytes, 0),
                PagePart::Attributes(numbers) => {
                    for number in *numbers {
                        let name = AttributeName::new(page, *number);
                        body.extend_from_slice(&self.value(name).await?);
                    }
                }
            }
        }
        Ok(body)
    }
}

/// Returns the name after another.
const fn after(id: AttributeId) -> AttributeId {
    match id.number.checked_add(1) {
        Some(number) => AttributeId::new(id.page, number),
        None => AttributeId::new(id.page.saturating_add(1), 0),
    }
}

/// A part of a page in page format.
enum PagePart {
    /// Bytes without a value: reserved, or of keys and algorithms that NOSEC does not have.
    Zeros(usize),
    /// Attributes by number, one after the other.
    Attributes(&'static [u32]),
}

/// Returns the layout of a page, as `lunar_scsi::osd::pages` declares it.
fn page_parts(version: OsdVersion, page: u32) -> &'static [PagePart] {
    use PagePart::{Attributes, Zeros};
    const BYPASS: u32 = pages::ROOT_TIMESTAMP_BYPASS.number;
    const TAG: u32 = pages::USER_POLICY_ACCESS_TAG.number;
    const OBJECT: u32 = pages::PARTITION_USER_OBJECT_POLICY_ACCESS_TAG.number;
    let offset = if page == pages::CURRENT_COMMAND { u32::MAX } else { page % PAGES_OF_OWNER };
    match (PageOwner::of(page), offset) {
        (Some(PageOwner::Root), pages::QUOTAS) => {
            &[Attributes(&[1, 0x1_0001, 0x1_0002, 0x1_0081, 0x2_0002])]
        }
        (Some(PageOwner::Partition), pages::QUOTAS) => {
            &[Attributes(&[1, 0x1_0001, 0x1_0002, 0x1_0081])]
        }
        (Some(PageOwner::User), pages::QUOTAS) => &[Attributes(&[1])],
        (Some(PageOwner::Root), pages::TIMESTAMPS) => &[Attributes(&[2, 3, BYPASS])],
        (Some(PageOwner::Partition), pages::TIMESTAMPS) => &[Attributes(&[1, 2, 3, 4, 5, BYPASS])],
        (Some(PageOwner::User | PageOwner::Collection), pages::TIMESTAMPS) => {
            &[Attributes(&[1, 2, 3, 4, 5])]
        }
        (Some(PageOwner::Root), pages::SECURITY) if version.is_osd2() => {
            &[Attributes(&[1, 6, 7, 2, 3]), Zeros(47), Zeros(1), Attributes(&[0xa])]
        }
        (Some(PageOwner::Root), pages::SECURITY) => &[Attributes(&[1, 6, 7, 2, 3]), Zeros(47)],
        (Some(PageOwner::Partition), pages::SECURITY) => {
            &[Zeros(3), Attributes(&[1, 2, 3, 4, 5, TAG, OBJECT]), Zeros(3 + 7 + 112)]
        }
        (Some(PageOwner::User | PageOwner::Collection), pages::SECURITY) => &[Attributes(&[TAG])],
        (Some(PageOwner::Root | PageOwner::Partition), pages::ERROR_RECOVERY) => {
            &[Attributes(&[6, 1, 2, 3, 4, 5])]
        }
        (Some(PageOwner::User | PageOwner::Collection), pages::ERROR_RECOVERY) => {
            &[Attributes(&[1]), Zeros(1), Attributes(&[3, 4])]
        }
        _ if page != pages::CURRENT_COMMAND => &[],
        _ if version == OsdVersion::Osd2 => {
            &[Attributes(&[1, 2]), Zeros(3), Attributes(&[3, 4, 5, 6])]
        }
        _ => &[Attributes(&[1, 2]), Zeros(3), Attributes(&[3, 4, 5])],
    }
}
