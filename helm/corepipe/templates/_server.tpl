{{/* What the server is told, and how long it takes to end. */}}

{{/* "--name=value" of a list (name, value), unless the value leaves it to the server. */}}
{{- define "corepipe.flag" -}}
{{- $name := first . -}}
{{- $value := last . -}}
{{- if and (not (kindIs "invalid" $value)) (ne (toString $value) "") }}
{{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ $value = int64 $value }}{{ end }}
- {{ printf "--%s=%v" $name $value | quote }}
{{- end }}
{{- end }}

{{/* A further model as one word: NAME=PATH,OPTION=VALUE... */}}
{{- define "corepipe.also" -}}
{{ .name }}={{ .model }}
{{- range $name, $value := .options }}
{{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ $value = int64 $value }}{{ end -}}
,{{ $name }}={{ $value }}
{{- end }}
{{- end }}

{{- define "corepipe.args" -}}
- serve
{{- with .Values.model }}
- {{ . | quote }}
{{- end }}
{{- with .Values }}
{{- include "corepipe.flag" (list "host" .bindAddress) }}
{{- include "corepipe.flag" (list "port" 8000) }}
{{- range .servedModelNames }}
{{- include "corepipe.flag" (list "served-model-name" .) }}
{{- end }}
{{- range .also }}
{{- include "corepipe.flag" (list "also" (include "corepipe.also" .)) }}
{{- end }}
{{- if .chatTemplate }}
{{- include "corepipe.flag" (list "chat-template" "/etc/corepipe/chat-template.jinja") }}
{{- end }}
{{- range .lora.modules }}
{{- include "corepipe.flag" (list "lora-modules" .) }}
{{- end }}
{{- range $key, $flag := include "corepipe.settings" $ | fromYaml }}
{{- $value := $.Values }}
{{- range splitList "." $key }}{{ $value = index $value . }}{{ end }}
{{- $names := append (splitList "/" $flag) "" }}
{{- if kindIs "bool" $value }}
{{- with ternary (first $names) (index $names 1) $value }}
- --{{ . }}
{{- end }}
{{- else }}
{{- include "corepipe.flag" (list $flag $value) }}
{{- end }}
{{- end }}
{{- if or .threads (not .also) }}
{{- include "corepipe.flag" (list "threads" (.threads | default (include "corepipe.cpus" .))) }}
{{- end }}
{{- if .adminPort.enabled }}
{{- include "corepipe.flag" (list "admin-host" .bindAddress) }}
{{- include "corepipe.flag" (list "admin-port" 8001) }}
{{- end }}
{{- if include "corepipe.metricsPort" $ }}
{{- include "corepipe.flag" (list "metrics-host" .bindAddress) }}
{{- include "corepipe.flag" (list "metrics-port" 8002) }}
{{- end }}
{{- if .kvEvents.enabled }}
{{- $topic := printf "kv@$(POD_IP):8000@%s" (include "corepipe.modelName" $) }}
{{- $places := dict "endpoint" "tcp://*:5557" "replay_endpoint" "tcp://*:5558" }}
{{- $events := mergeOverwrite (dict "enable_kv_cache_events" true "topic" $topic) $places }}
- --kv-events-config
- {{ $events | toJson | quote }}
{{- end }}
{{- if .fleet.enabled }}
{{- include "corepipe.fleetArgs" $ }}
{{- end }}
{{- if .tls.existingSecret }}
{{- include "corepipe.flag" (list "ssl-certfile" "/etc/corepipe-tls/tls.crt") }}
{{- include "corepipe.flag" (list "ssl-keyfile" "/etc/corepipe-tls/tls.key") }}
{{- end }}
{{- if not .apiKeys.existingSecret }}
- --insecure
{{- end }}
{{- range .allowedOrigins }}
{{- include "corepipe.flag" (list "allowed-origin" .) }}
{{- end }}
{{- range .extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whole CPUs of the limit: a server that starts a thread for each of the node's would be throttled. */}}
{{- define "corepipe.cpus" -}}
{{- with dig "limits" "cpu" "" .resources | toString -}}
{{- if hasSuffix "m" . }}{{ divf (trimSuffix "m" . | float64) 1000 | ceil }}{{ else }}{{ ceil . }}{{ end }}
{{- end }}
{{- end }}

{{/* The port of a URL. */}}
{{- define "corepipe.urlPort" -}}
{{- $url := urlParse . -}}
{{- regexFind "[0-9]+$" $url.host | default (ternary "443" "80" (eq $url.scheme "https")) }}
{{- end }}

{{/* "true" where the pod gets its model from the network. */}}
{{- define "corepipe.fetches" -}}
{{- with .Values -}}
{{- if ternary (not (hasPrefix "/" (.model | default ""))) (not .image.includesModel) (not (empty .model)) }}true{{ end }}
{{- end }}
{{- end }}

{{/* The server lets answers end and has 2 s for last words; the rest is for the container to stop. */}}
{{- define "corepipe.gracePeriod" -}}
{{ add .Values.preStopSeconds .Values.drainSeconds 2 8 }}
{{- end }}

{{/* What the pods speak. */}}
{{- define "corepipe.scheme" -}}
{{ if .Values.tls.existingSecret }}https{{ else }}http{{ end }}
{{- end }}

{{/* A probe of a list (context, path). */}}
{{- define "corepipe.probe" -}}
{{- $root := first . -}}
{{- if eq $root.Values.probes.type "exec" -}}
exec:
  command: [python3, -m, corepipe.probe, {{ printf "%s://127.0.0.1:8000%s" (include "corepipe.scheme" $root) (last .) | quote }}]
{{- else -}}
httpGet:
  path: {{ last . }}
  port: http
  {{- if $root.Values.tls.existingSecret }}
  scheme: HTTPS
  {{- end }}
{{- end }}
timeoutSeconds: 5
{{- end }}
