// Search runs in a worker, and browsers start none for pages that are opened as files. There, a
// hidden frame does a worker's job: it gets the messages, and what it posts goes back to the page.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.document.open()
      inside.document.write("<!doctype html><title>search</title><body>")
      inside.document.close()
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data })
        this.onmessage?.(event)
        this.dispatchEvent(event)
      }
      const script = inside.document.createElement("script")
      script.src = address
      const loaded = new Promise((resolve) => { script.onload = resolve })
      inside.document.body.append(script)
      this.postMessage = (data) =>
        loaded.then(() => inside.dispatchEvent(new MessageEvent("message", { data })))
      this.terminate = () => frame.remove()
    }
  }
}
