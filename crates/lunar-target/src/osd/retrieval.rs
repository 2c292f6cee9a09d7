//! Phase 4: attributes of the object in data-in, at the offset in the CDB.

use super::attributes::AttributesToGet;
use super::sense::{OsdFailure, invalid};
use super::values::AttributeReader;
use super::{CheckedOsdCommand, OsdExecution, OsdExecutor};
use lunar_osd::{AccessKind, ObjectId};
use lunar_scsi::osd::{
    AttributeName, AttributeValue, BufferRange, ObjectType, OsdCdb, OsdCommand,
    RetrievedListBuilder, field_at, pages,
};
use lunar_scsi::sense::Sense;

/// Data-in. Bytes between its segments are zero; those beyond the initiator's room are cut.
#[derive(Debug)]
pub(super) struct OsdDataIn {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl OsdDataIn {
    pub(super) const fn new(bytes_max: usize) -> Self {
        Self { bytes: Vec::new(), bytes_max }
    }

    /// Returns the room from an offset on.
    pub(super) fn room(&self, offset: u64) -> usize {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        self.bytes_max.saturating_sub(offset)
    }

    /// Puts bytes at an offset.
    pub(super) fn put(&mut self, offset: u64, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.room(offset))];
        if bytes.is_empty() {
            return;
        }
        // The offset is less than the room, which is a usize.
        let start = offset as usize;
        self.extend_to(start + bytes.len());
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Adds zeroes up to a length.
    pub(super) fn extend_to(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes_max);
        if self.bytes.len() < bytes {
            self.bytes.resize(bytes, 0);
        }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Refuses pages of several objects: only the Current Command page can be read then.
pub(super) fn check_page_of_many_objects(cdb: &OsdCdb, get: &AttributesToGet) -> Result<(), Sense> {
    match (&cdb.command, get) {
        (OsdCommand::Create { count: 2.., .. }, AttributesToGet::Page(page, _))
            if *page != pages::CURRENT_COMMAND =>
        {
            Err(invalid(field_at::ATTRIBUTES))
        }
        _ => Ok(()),
    }
}

impl OsdExecutor {
    /// Reads the attributes that the command gets, and puts them into data-in.
    pub(super) async fn retrieve(
        &self,
        checked: &CheckedOsdCommand<'_>,
        executed: &OsdExecution,
        data_in: &mut OsdDataIn,
    ) -> Result<(), OsdFailure> {
        // The last of several objects is that of the Current Command page.
        let Some(last) = executed.objects.last().copied() else { return Ok(()) };
        let (retrieved, range) = match &checked.attributes.get {
            AttributesToGet::Nothing => return Ok(()),
            AttributesToGet::Page(page, range) => {
                let reader = self.reader(checked, executed, last).await?;
                let body = reader.page_body(*page).await?;
                (pages::encode_page(*page, &body, room(data_in, *range)), range)
            }
            AttributesToGet::List(names, range) => {
                let room = room(data_in, *range);
                let list = match executed.objects.len() {
                    1 => self.list(checked, executed, names, last, room).await?,
                    _ => self.list_of_objects(checked, executed, names, room).await?,
                };
                (list, range)
            }
        };
        data_in.put(range.offset, &retrieved);
        self.record_access(checked, AccessKind::Attributes).await
    }

    async fn reader(
        &self,
        checked: &CheckedOsdCommand<'_>,
        executed: &OsdExecution,
        id: ObjectId,
    ) -> Result<AttributeReader<'_>, OsdFailure> {
        Ok(AttributeReader {
            store: &self.store,
            identity: &self.identity,
            version: checked.request.cdb.version,
            results: executed.results,
            time: checked.request.time,
            information: self.store.information(id).await?,
        })
    }

    async fn list(
        &self,
        checked: &CheckedOsdCommand<'_>,
        executed: &OsdExecution,
        names: &[AttributeName],
        id: ObjectId,
        room: usize,
    ) -> Result<Vec<u8>, OsdFailure> {
        let reader = self.reader(checked, executed, id).await?;
        let mut list = RetrievedListBuilder::new(checked.request.cdb.version, room);
        for name in names {
            let push = |name, value: &[u8]| list.push(&AttributeValue { name, value });
            reader.expand(*name, push).await?;
        }
        Ok(list.finish())
    }

    async fn list_of_objects(
        &self,
        checked: &CheckedOsdCommand<'_>,
        executed: &OsdExecution,
        names: &[AttributeName],
        room: usize,
    ) -> Result<Vec<u8>, OsdFailure> {
        let mut list = RetrievedListBuilder::for_objects(checked.request.cdb.version, room);
        for id in &executed.objects {
            let reader = self.reader(checked, executed, *id).await?;
            let mut values: Vec<(AttributeName, Vec<u8>)> = Vec::new();
            for name in names {
                reader.expand(*name, |name, value| values.push((name, value.to_vec()))).await?;
            }
            let values: Vec<AttributeValue<'_>> =
                values.iter().map(|(name, value)| AttributeValue { name: *name, value }).collect();
            list.push_object(id.object, ObjectType::USER, &values);
        }
        Ok(list.finish())
    }
}

/// Returns the room for retrieved attributes.
fn room(data_in: &OsdDataIn, range: BufferRange) -> usize {
    data_in.room(range.offset).min(range.length as usize)
}
