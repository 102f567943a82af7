{{/* What the endpoint picker (llm-d-router) is to do with these pods. */}}

{{/* "true" where it can know what is in the pods' prefix caches: they tell it, and it may ask them for tokens. */}}
{{- define "corepipe.pickerKnows" -}}
{{- with .Values -}}
{{- if and .kvEvents.enabled (not .apiKeys.existingSecret) (not .tls.existingSecret) }}true{{ end }}
{{- end }}
{{- end }}

{{- define "corepipe.pickerConfig" -}}
{{- $knows := include "corepipe.pickerKnows" . -}}
{{- $service := printf "%s.%s.svc" (include "corepipe.fullname" .) .Release.Namespace -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: single-profile-handler
  - type: metrics-data-source
    parameters:
      scheme: {{ include "corepipe.scheme" . }}
      path: /metrics
      port: 8002
      insecureSkipVerify: true
  - type: core-metrics-extractor
  {{- if .Values.batching.prefixCaching }}
  {{- if $knows }}
  - type: endpoint-notification-source
  - type: token-producer
    parameters:
      modelName: {{ include "corepipe.modelName" . | quote }}
      vllm:
        url: {{ printf "http://%s:%v" $service (int64 .Values.service.port) | quote }}
  - type: precise-prefix-cache-producer
    parameters:
      tokenProcessorConfig:
        blockSizeTokens: {{ .Values.batching.blockSize | default 32 | int64 }}
      kvEventsConfig:
        topicFilter: kv@
        concurrency: 4
        discoverPods: true
        podDiscoveryConfig:
          socketPort: 5557
          replaySocketPort: 5558
  {{- else }}
  - type: approx-prefix-cache-producer
    parameters:
      autoTune: true
      blockSizeTokens: {{ .Values.batching.blockSize | default 32 | int64 }}
  {{- end }}
  - type: prefix-cache-scorer
    parameters:
      prefixMatchInfoProducerName: {{ ternary "precise" "approx" (eq $knows "true") }}-prefix-cache-producer
  {{- end }}
  - type: queue-scorer
  - type: kv-cache-utilization-scorer
  - type: max-score-picker
dataLayer:
  sources:
    - pluginRef: metrics-data-source
      extractors:
        - pluginRef: core-metrics-extractor
    {{- if and $knows .Values.batching.prefixCaching }}
    - pluginRef: endpoint-notification-source
      extractors:
        - pluginRef: precise-prefix-cache-producer
    {{- end }}
schedulingProfiles:
  - name: default
    plugins:
      {{- if .Values.batching.prefixCaching }}
      - pluginRef: prefix-cache-scorer
        weight: 3
      {{- end }}
      - pluginRef: queue-scorer
        weight: 2
      - pluginRef: kv-cache-utilization-scorer
        weight: 2
      - pluginRef: max-score-picker
{{- end }}

{{/* What is to be done with an InferencePool before it is of use. */}}
{{- define "corepipe.pickerNotes" -}}
{{- $picker := .Values.inferencePool.endpointPicker }}

{{ if $picker.config -}}
The endpoint picker {{ $picker.name }} is to read corepipe.yaml of the ConfigMap {{ include "corepipe.fullname" . }}-endpoint-picker (--config-file).
{{- else -}}
No configuration is written for the endpoint picker {{ $picker.name }} (inferencePool.endpointPicker.config): have it read metrics on port 8002.
{{- end }}
{{- if or .Values.apiKeys.existingSecret .Values.adminPort.enabled }}
Until it does the InferencePool misleads: the picker asks port 8000, gets no metrics, and takes every pod for saturated.
{{- else }}
Until it does it hashes blocks of another size than the pods' and knows nothing of what they tell of their caches.
{{- end }}
{{- if and .Values.kvEvents.enabled $picker.config (not (include "corepipe.pickerKnows" .)) }}
It will not listen to the pods' KV events: to match them it asks a pod for tokens, without a key and a certificate.
{{- end }}
{{- if and .Values.networkPolicy.enabled (not .Values.metricsPort.from) }}
The network policy lets in this namespace alone: if the picker is in another one, add that to metricsPort.from{{ if .Values.kvEvents.enabled }} and kvEvents.from{{ end }}.
{{- end }}
{{- end }}
